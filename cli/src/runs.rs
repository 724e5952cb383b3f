//! The runs that commands show and compare: their names, figures and settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;
use zillion_trainer::RunRecord;

/// The direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
    /// No direction is better, as for the number of rows.
    Neither,
}

/// A figure of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// The name with the data set before it, as in `test auc`.
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) better: Better,
}

/// A run with a name that no other shown run has.
pub(crate) struct ShownRun {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) record: RunRecord,
}

/// Reads the records of runs. The name of a run is that of its folder, or the whole path if another
/// folder has the same name.
pub(crate) fn load_runs(paths: &[PathBuf]) -> Result<Vec<ShownRun>> {
    let short = |path: &PathBuf| {
        path.file_name().map_or_else(|| path.display().to_string(), |n| n.display().to_string())
    };
    let names: Vec<String> = paths.iter().map(short).collect();
    let mut runs = Vec::with_capacity(paths.len());
    for (path, name) in paths.iter().zip(&names) {
        let record = RunRecord::find(path)
            .with_context(|| format!("{} is not the folder of a run", path.display()))?;
        let is_twice = names.iter().filter(|other| *other == name).count() > 1;
        let name = if is_twice { path.display().to_string() } else { name.clone() };
        runs.push(ShownRun { name, path: path.clone(), record });
    }
    Ok(runs)
}

/// Returns the figures of a run: those of the validation of its best epoch, of its test, and of
/// training.
pub(crate) fn list_figures(record: &RunRecord) -> Vec<Figure> {
    let mut figures = Vec::new();
    let best = record.best();
    if let Some(valid) = best.and_then(|best| best.valid.as_ref()) {
        figures.extend(figures_of_report("valid", valid));
    }
    if let Some(test) = record.test() {
        figures.extend(figures_of_report("test", test));
    }
    let mut add = |name: &str, value: Option<f64>, better| {
        figures.extend(value.map(|value| Figure { name: name.to_owned(), value, better }));
    };
    add("training loss", best.and_then(|best| best.loss), Better::Lower);
    add("best epoch", record.best_epoch.map(|epoch| epoch as f64), Better::Neither);
    let report = record.report.as_ref();
    let number = |key: &str| report.and_then(|report| report.get(key)).and_then(Value::as_f64);
    for (name, key, better) in [
        ("epochs", "epochs", Better::Neither),
        ("steps", "steps", Better::Neither),
        ("dense parameters", "dense_parameters", Better::Neither),
        ("rows per second", "samples_per_second", Better::Higher),
        ("peak memory MiB", "peak_rss_mib", Better::Lower),
    ] {
        add(name, number(key), better);
    }
    let tables = list_tables(record);
    if !tables.is_empty() {
        let rows: u64 = tables.iter().map(|table| table.rows).sum();
        let bytes: u64 = tables.iter().map(|table| table.bytes).sum();
        add("table rows", Some(rows as f64), Better::Neither);
        add("table MiB", Some(bytes as f64 / f64::from(1 << 20)), Better::Lower);
    }
    figures
}

/// Returns the figures in the report of an evaluation, in the order of importance. Counts of rows
/// are left out.
pub(crate) fn figures_of_report(set: &str, report: &Value) -> Vec<Figure> {
    let Some(report) = report.as_object() else { return Vec::new() };
    let mut figures = Vec::new();
    let mut add = |name: &str, value: &Value| {
        if let Some(value) = value.as_f64().filter(|_| value.is_f64()) {
            let better = find_better(name);
            figures.push(Figure { name: format!("{set} {name}"), value, better });
        }
    };
    const FIRST: [&str; 5] = ["auc", "gauc", "logloss", "rmse", "calibration"];
    for name in FIRST {
        report.get(name).into_iter().for_each(|value| add(name, value));
    }
    for (name, value) in report.iter().filter(|(name, _)| !FIRST.contains(&name.as_str())) {
        match value {
            Value::Object(ranking) if name == "ranking" => {
                ranking.iter().for_each(|(name, value)| add(name, value));
            }
            value => add(name, value),
        }
    }
    figures
}

/// Returns the direction in which a figure of an evaluation improves, by its name.
fn find_better(name: &str) -> Better {
    const HIGHER: [&str; 7] = ["auc", "ndcg", "recall", "mrr", "accuracy", "r2", "map"];
    const LOWER: [&str; 6] = ["loss", "mse", "mae", "deviance", "huber", "error"];
    if LOWER.iter().any(|word| name.contains(word)) {
        Better::Lower
    } else if HIGHER.iter().any(|word| name.contains(word)) {
        Better::Higher
    } else {
        Better::Neither
    }
}

/// Returns the name of the validation figure that stands for the quality of a run: the AUC, or
/// otherwise the first figure with a direction.
pub(crate) fn main_figure(record: &RunRecord) -> Option<(String, Better)> {
    let valid = record.epochs.iter().find_map(|epoch| epoch.valid.as_ref())?;
    let figures = figures_of_report("", valid);
    let of = |figure: &Figure| (figure.name.trim().to_owned(), figure.better);
    let ranks = |figure: &&Figure| figure.better == Better::Higher;
    let directed = |figure: &&Figure| figure.better != Better::Neither;
    figures.iter().find(ranks).or_else(|| figures.iter().find(directed)).map(of)
}

/// Returns a figure of the report of an evaluation by its name, also one of its rankings.
pub(crate) fn find_figure(report: &Value, name: &str) -> Option<f64> {
    let ranking = || report.get("ranking").and_then(|ranking| ranking.get(name));
    report.get(name).or_else(ranking)?.as_f64()
}

/// The size of a table at the end of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableSize {
    pub(crate) name: String,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Returns the sizes of the tables of a run.
pub(crate) fn list_tables(record: &RunRecord) -> Vec<TableSize> {
    let tables = record.report.as_ref().and_then(|report| report.get("tables"));
    let size = |table: &Value| {
        Some(TableSize {
            name: table.get("name")?.as_str()?.to_owned(),
            rows: table.get("rows")?.as_u64()?,
            bytes: table.get("bytes")?.as_u64()?,
        })
    };
    tables.and_then(Value::as_array).into_iter().flatten().filter_map(size).collect()
}

/// Returns the settings of a run by their dotted keys. Lists are one value.
pub(crate) fn flatten_settings(settings: &Value) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    flatten("", settings, &mut flat);
    flat
}

fn flatten(path: &str, value: &Value, flat: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, flat);
            }
        }
        Value::String(text) => drop(flat.insert(path.to_owned(), text.clone())),
        value => drop(flat.insert(path.to_owned(), value.to_string())),
    }
}

/// Returns the settings that are not the same in all runs: the key, and the value of each run.
pub(crate) fn list_differences(runs: &[ShownRun]) -> Vec<(String, Vec<Option<String>>)> {
    let settings: Vec<BTreeMap<String, String>> =
        runs.iter().map(|run| flatten_settings(&run.record.settings)).collect();
    let mut keys: Vec<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let values = |key: &String| settings.iter().map(|of| of.get(key).cloned()).collect::<Vec<_>>();
    let all = keys.into_iter().map(|key| (key.clone(), values(key)));
    let differ = all.filter(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1]));
    join_tables(differ.collect())
}

/// Joins the lines of tables in which the same setting has the same values: `tables.a.dim` and
/// `tables.b.dim` become `tables.*.dim (2)`.
fn join_tables(lines: Vec<(String, Vec<Option<String>>)>) -> Vec<(String, Vec<Option<String>>)> {
    let rest =
        |key: &str| key.strip_prefix("tables.")?.split_once('.').map(|(_, rest)| rest.to_owned());
    let mut joined: Vec<(String, Vec<Option<String>>)> = Vec::new();
    for (key, values) in &lines {
        let Some(rest_of_key) = rest(key) else {
            joined.push((key.clone(), values.clone()));
            continue;
        };
        let is_same = |(other, values_of_other): &&(String, Vec<Option<String>>)| {
            rest(other).as_ref() == Some(&rest_of_key) && values_of_other == values
        };
        let key = match lines.iter().filter(is_same).count() {
            1 => key.clone(),
            tables => format!("tables.*.{rest_of_key} ({tables})"),
        };
        if joined.iter().all(|(other, _)| *other != key) {
            joined.push((key, values.clone()));
        }
    }
    joined
}

/// Returns the figures of all runs: the name, the direction, and the value of each run. Figures
/// keep the order in which the runs have them.
pub(crate) fn align_figures(runs: &[ShownRun]) -> Vec<(String, Better, Vec<Option<f64>>)> {
    let figures: Vec<Vec<Figure>> = runs.iter().map(|run| list_figures(&run.record)).collect();
    let mut names: Vec<(String, Better)> = Vec::new();
    for figure in figures.iter().flatten() {
        if names.iter().all(|(name, _)| *name != figure.name) {
            names.push((figure.name.clone(), figure.better));
        }
    }
    let find = |figures: &Vec<Figure>, name: &str| {
        figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    };
    let line = |(name, better): (String, Better)| {
        let values = figures.iter().map(|figures| find(figures, &name)).collect();
        (name, better, values)
    };
    names.into_iter().map(line).collect()
}

/// Returns the position of the best value, if a direction is better, two runs have a value and not
/// all values are the same.
pub(crate) fn find_best(better: Better, values: &[Option<f64>]) -> Option<usize> {
    let known: Vec<(usize, f64)> =
        values.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?))).collect();
    let differ = known.iter().any(|(_, value)| *value != known[0].1);
    let compare = |a: &&(usize, f64), b: &&(usize, f64)| a.1.total_cmp(&b.1);
    let best = match better {
        Better::Higher => known.iter().rev().max_by(compare),
        Better::Lower => known.iter().min_by(compare),
        Better::Neither => None,
    };
    best.filter(|_| differ).map(|(at, _)| *at)
}

/// Formats a figure with the digits that its size needs.
pub(crate) fn format_value(value: f64) -> String {
    match value.abs() {
        size if size >= 1e4 && value.fract() == 0.0 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", crate::text::grouped(size as u64))
        }
        _ if value.fract() == 0.0 => format!("{value}"),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.5}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_floats_in_the_order_of_importance() {
        let report = serde_json::json!({
            "auc": 0.75, "logloss": 0.5, "calibration": 1.0, "rows": 10, "rejected_rows": 0, "pr_auc": 0.25,
            "ranking": { "ndcg@10": 0.4 }, "gauc": null,
        });
        let figures = figures_of_report("test", &report);
        let named: Vec<_> = figures.iter().map(|f| (f.name.as_str(), f.better)).collect();
        assert_eq!(
            named,
            [
                ("test auc", Better::Higher),
                ("test logloss", Better::Lower),
                ("test calibration", Better::Neither),
                ("test pr_auc", Better::Higher),
                ("test ndcg@10", Better::Higher)
            ]
        );
        assert_eq!(find_figure(&report, "ndcg@10"), Some(0.4));
    }

    #[test]
    fn the_best_value_is_found_in_its_direction() {
        let values = [Some(0.5), None, Some(0.75), Some(0.75)];
        assert_eq!(find_best(Better::Higher, &values), Some(2));
        assert_eq!(find_best(Better::Lower, &values), Some(0));
        assert_eq!(find_best(Better::Neither, &values), None);
        assert_eq!(find_best(Better::Higher, &[Some(1.0), Some(1.0)]), None);
        assert_eq!(find_best(Better::Higher, &[]), None);
    }

    #[test]
    fn a_setting_of_many_tables_is_one_line() {
        let values = |a: &str, b: &str| vec![Some(a.to_owned()), Some(b.to_owned())];
        let lines = [
            ("seed", values("1", "2")),
            ("tables.a.optimizer.lr", values("0.1", "0.2")),
            ("tables.b.optimizer.lr", values("0.1", "0.2")),
            ("tables.c.dim", values("4", "8")),
        ];
        let joined = join_tables(lines.map(|(key, values)| (key.to_owned(), values)).into());
        let keys: Vec<&str> = joined.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["seed", "tables.*.optimizer.lr (2)", "tables.c.dim"]);
    }

    #[test]
    fn settings_have_dotted_keys() {
        let settings =
            serde_json::json!({ "train": { "epochs": 3, "rates": [1, 2] }, "name": "a" });
        let flat = flatten_settings(&settings);
        let shown: Vec<_> = flat.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(shown, ["name=a", "train.epochs=3", "train.rates=[1,2]"]);
    }
}
