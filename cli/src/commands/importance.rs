//! `zillion importance`: shows how much worse a model scores without the information of each
//! feature.

use anyhow::Result;
use zillion_console::exit::usage_error;
use zillion_console::{compute_pool, data_settings, print_result};
use zillion_reader::Dataset;
use zillion_trainer::{FeatureImportance, ImportanceOptions, ImportanceReport, Loaded};

use crate::args::ImportanceArgs;
use crate::bar::Bar;
use crate::registry::print_store_retries;
use crate::report;
use crate::text::{self, grouped};

pub(crate) fn run(args: &ImportanceArgs) -> Result<()> {
    let mut loaded = Loaded::open(&args.checkpoint, compute_pool(args.threads)?)?;
    let data = data_settings::of_checkpoint(&loaded.job, &args.set)?;
    let Some(files) = data_settings::files_to_score(&data, &args.data)? else {
        return usage_error(
            "the checkpoint's job names no test files; name files with labelled rows after the run",
        );
    };
    let dataset = Dataset::open(&data, &files, &loaded.job.schema)?
        .with_statistics(loaded.statistics().clone());
    let options = ImportanceOptions {
        rows: args.rows.get(),
        repeat: args.repeat,
        seed: args.seed,
        metric: args.metric,
    };
    let mut bar: Option<Bar> = None;
    let measured = loaded.measure_importance(&dataset, &options, &mut |done, all| {
        let bar = bar.get_or_insert_with(|| Bar::new("importance", all as u64, "evaluations"));
        bar.update(done as u64);
    });
    drop(bar);
    report::write_rejects(&data, &dataset)?;
    let measured = measured?;
    print_store_retries(&data.stores.sums());
    print_result(args.json, &measured, show)
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn show(report: &ImportanceReport) {
    let which = if report.has_more_rows { "the first " } else { "all " };
    println!(
        "{which}{} rows, {} of each feature, seed {}",
        grouped(report.rows),
        match report.repeat {
            1 => "1 permutation".to_owned(),
            count => format!("{count} permutations"),
        },
        report.seed
    );
    for task in &report.tasks {
        let change = if task.lower_is_better { "rise" } else { "drop" };
        println!("\n{}  {} {:.6}", task.task, task.metric, task.value);
        let head = format!("{change} of {}", task.metric);
        let lines = task.features.iter().map(|feature| {
            let spread = feature.spread.map_or_else(String::new, |s| format!("± {s:.5}"));
            let cross = if feature.is_cross { " (cross, alone)" } else { "" };
            vec![
                format!("{}{cross}", feature.feature),
                format!("{:.5}", feature.importance),
                spread,
            ]
        });
        print!("{}", text::table(&["feature", &head, ""], lines, 1));
        let idle: Vec<&str> = task
            .features
            .iter()
            .filter(|feature| !feature.has_effect)
            .map(|feature: &FeatureImportance| feature.feature.as_str())
            .collect();
        if !idle.is_empty() {
            println!("no effect above the spread of the permutations: {}", idle.join("; "));
        }
    }
    for task in &report.tasks_without_metric {
        println!("\n{task}  not measured: the metric does not exist over these rows");
    }
    println!(
        "\nFeatures that tell the same share their importance: if one is permuted, the model still has the other.\n\
         A feature without effect here may be needed once another is removed, so remove one at a time and train again."
    );
}
