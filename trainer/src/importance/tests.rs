//! Tests of the importance of features that a data set was made of.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;

use zillion_feature::random::{combine, mix64};

use super::*;
use crate::observer::Silent;
use crate::predict::Loaded;
use crate::train::{TrainOptions, train};

const ROWS: u64 = 4000;

/// Writes rows whose label depends much on `strong`, little on `weak`, and not on `noise`. The
/// label `value` is a number.
fn write(path: &Path, part: u64) {
    let mut text = "strong,weak,noise,list,label,value\n".to_owned();
    for index in 0..ROWS {
        let draw = |salt: u64| mix64(combine(combine(part, salt), index));
        let (strong, weak, noise) = (draw(1) % 10, draw(2) % 10, draw(3) % 10);
        let effect = |id: u64| id as f64 / 4.5 - 1.0;
        let value = 3.0 * effect(strong) + effect(weak);
        let chance = 1.0 / (1.0 + (-value).exp());
        let label = u8::from(((draw(4) % 10_000) as f64) < chance * 10_000.0);
        writeln!(text, "{strong},{weak},{noise},a|b,{label},{value}").expect("a text");
    }
    std::fs::write(path, text).expect("a file");
}

fn train_job(folder: &Path, rest: &str) -> Loaded {
    write(&folder.join("train.csv"), 0);
    write(&folder.join("valid.csv"), 1);
    let text = format!(
        "seed = 1\n[data]\nroot = {folder:?}\ntrain = ['train.csv']\nvalid = ['valid.csv']\nlist_separator = '|'\n\
         [features.strong]\nkind = 'id'\n[features.weak]\nkind = 'id'\n[features.noise]\nkind = 'id'\n\
         [features.number]\nkind = 'numeric'\ncolumn = 'weak'\ntransform = 'standardise'\n\
         [features.list]\nkind = 'ids'\ntype = 'string'\n\
         [tables.'*']\ndim = 4\noptimizer = {{ kind = 'adagrad', lr = 0.1 }}\n\
         [labels.label]\n[run]\noutput = {:?}\n{rest}\n",
        folder.join("run")
    );
    let value: toml::Table = toml::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let job = Job::from_value(value.into()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let options = TrainOptions::new(1).expect("a pool");
    let report = train(job, options, &mut Silent).expect("it trains");
    let workers = Arc::new(Workers::new(NonZeroUsize::MIN).expect("a pool"));
    Loaded::open(&report.checkpoint, workers).expect("a checkpoint")
}

fn open_valid(loaded: &Loaded) -> Dataset {
    let data = &loaded.job.data;
    let files = data.files(&data.valid).expect("a file");
    Dataset::open(data, &files, &loaded.job.schema)
        .expect("it opens")
        .with_statistics(loaded.statistics().clone())
}

const OPTIONS: ImportanceOptions = ImportanceOptions {
    rows: 100_000,
    repeat: NonZeroU32::MIN.saturating_add(2),
    seed: 5,
    metric: None,
};

#[test]
fn the_order_is_that_of_the_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut loaded =
        train_job(folder.path(), "[model]\nkind = 'lr'\n[train]\nbatch_size = 500\nepochs = 2");
    let dataset = open_valid(&loaded);
    let mut steps = Vec::new();
    let report = loaded
        .measure_importance(&dataset, &OPTIONS, &mut |done, all| steps.push((done, all)))
        .expect("it is measured");
    assert_eq!(steps.first().zip(steps.last()), Some((&(1, 13), &(13, 13))));
    assert_eq!((report.rows, report.has_more_rows), (ROWS, false));
    let task = &report.tasks[0];
    let names: Vec<&str> = task.features.iter().map(|f| f.feature.as_str()).collect();
    assert_eq!((names[0], names[1]), ("strong", "weak, number"), "{task:?}");
    let of = |name: &str| task.features.iter().find(|f| f.feature == name).expect("a feature");
    assert!(of("strong").importance > 0.1 && of("strong").has_effect, "{task:?}");
    assert!((0.003..0.1).contains(&of("weak, number").importance), "{task:?}");
    assert!(of("noise").importance.abs() < 0.005, "{task:?}");
    // A list that is the same in all rows changes no score.
    assert_eq!((of("list").importance, of("list").spread), (0.0, Some(0.0)));
    assert!(!of("list").has_effect);
    // The metric is that of an evaluation, to the bit.
    let evaluated = loaded.evaluate(&dataset).expect("it is evaluated");
    assert_eq!((Some(task.value), task.metric.as_str()), (evaluated.auc, "auc"));
    // The same seed gives the same numbers, and another seed others.
    let again = loaded.measure_importance(&dataset, &OPTIONS, &mut |_, _| ()).expect("measured");
    assert_eq!(again, report);
    let other = ImportanceOptions { seed: 6, ..OPTIONS };
    let other = loaded.measure_importance(&dataset, &other, &mut |_, _| ()).expect("measured");
    assert_ne!(other.tasks, report.tasks);
}

#[test]
fn errors_of_numbers_rise_and_rows_are_bounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut loaded = train_job(
        folder.path(),
        "[labels.value]\nkind = 'number'\n[model]\nkind = 'shared_bottom'\nbottom = [16]\n\
         [train]\nbatch_size = 100\nepochs = 3\noptimizer = { kind = 'adam', lr = 0.01 }",
    );
    let dataset = open_valid(&loaded);
    let options = ImportanceOptions { rows: 1200, ..OPTIONS };
    let report =
        loaded.measure_importance(&dataset, &options, &mut |_, _| ()).expect("it is measured");
    assert_eq!((report.rows, report.has_more_rows), (1200, true));
    let [click, value] = &report.tasks[..] else { panic!("{report:?}") };
    assert_eq!((click.task.as_str(), click.metric.as_str()), ("label", "auc"));
    assert_eq!((value.metric.as_str(), value.lower_is_better), ("rmse", true));
    for task in [click, value] {
        assert_eq!(task.features[0].feature, "strong", "{task:?}");
        assert!(task.features[0].importance > 0.1, "{task:?}");
    }
    // A label without the metric is named, and it is an error if no label has it.
    let auc = ImportanceOptions { metric: Some(PlateauMetric::Auc), ..options };
    let report = loaded.measure_importance(&dataset, &auc, &mut |_, _| ()).expect("measured");
    assert_eq!((report.tasks.len(), report.tasks_without_metric), (1, vec!["value".to_owned()]));
    let gauc = ImportanceOptions { metric: Some(PlateauMetric::Gauc), ..options };
    let error = loaded.measure_importance(&dataset, &gauc, &mut |_, _| ()).expect_err("no groups");
    assert!(error.to_string().contains("metric `gauc`"), "{error}");
}
