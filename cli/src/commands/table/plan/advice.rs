//! The advice about a table in sentences. For each rule, it names the strongest setting whose cost
//! is small.

use super::Planned;
use crate::text::{bytes, grouped};

/// The maximum share of values that lose their row by a recommended admission rule.
const VALUES: f64 = 0.03;
/// The largest share of values that may occur again after a recommended eviction of their row.
const RETURNS: f64 = 0.01;
/// The minimum share of rows that a recommended setting must save.
const ROWS: f64 = 0.1;
/// The maximum error of a forecast of growth for which the advice gives no warning.
const FORESIGHT: f64 = 0.1;
/// The minimum share of the best possible hit rate that a recommended cache must reach.
const REACHED: f64 = 0.95;

/// Returns the advice about one table, with one sentence for each setting.
pub(super) fn advise(table: &Planned<'_>) -> Vec<String> {
    let usage = &table.plan.usage;
    if usage.keys == 0 {
        return vec!["no value of the sample reads this table".to_owned()];
    }
    let mut advice = Vec::new();
    if table.spec.dense {
        advice.push(
            "a dense table has the rows of its vocabulary from the start: admission and eviction are only for \
             dynamic tables"
                .to_owned(),
        );
    } else {
        advice.push(admission(table));
        advice.extend(widths(table));
        advice.push(eviction(table));
    }
    advice.push(cache(table));
    advice.extend(numbers(table));
    advice.extend(growth(table));
    advice
}

fn admission(table: &Planned<'_>) -> String {
    let usage = &table.plan.usage;
    let unknown = || "the sample has no figures about admission".to_owned();
    let Some(all) = usage.admission.first() else { return unknown() };
    let saved = |rows: u64| 1.0 - rows as f64 / usage.keys as f64;
    let good = |point: &&zillion_embedding::capacity::AdmissionPoint| {
        point.at_least > 1 && all.found - point.found <= VALUES && saved(point.rows) >= ROWS
    };
    let (point, verdict) = match usage.admission.iter().rev().find(good) {
        Some(point) => (Some(point), ""),
        None => (usage.admission.iter().find(|p| p.at_least > 1), ": not worth it"),
    };
    let Some(point) = point else { return unknown() };
    format!(
        "admission count {} removes {} of rows and {} of values (memory {} instead of {}){verdict}",
        point.at_least,
        percent(saved(point.rows)),
        percent((all.found - point.found).max(0.0)),
        bytes(table.admitted_bytes(point)),
        bytes(table.bytes(usage.keys))
    )
}

/// Describes the memory that growing rows save in the job. A row is pushed at most once per step.
/// So the number of full rows is at most the number of keys with enough occurrences. Returns `None`
/// if the table's rows do not grow.
fn widths(table: &Planned<'_>) -> Option<String> {
    let usage = &table.plan.usage;
    let at = table.spec.grow?.at;
    let full = usage.admission.iter().find(|point| point.at_least == at)?.rows.min(usage.keys);
    let memory = table.spec.memory_of_widths(full, usage.keys - full, table.shards);
    Some(format!(
        "rows that grow at {at} updates: at most {} of {} keys become full (memory {} instead of {})",
        grouped(full),
        grouped(usage.keys),
        bytes(memory),
        bytes(table.bytes(usage.keys))
    ))
}

fn eviction(table: &Planned<'_>) -> String {
    let usage = &table.plan.usage;
    if usage.eviction.is_empty() {
        return format!(
            "the sample has {} steps, too few for a forecast of eviction",
            grouped(usage.steps)
        );
    }
    let saved = |rows: u64| 1.0 - rows as f64 / usage.keys as f64;
    let good = usage.eviction.iter().find(|p| p.lost <= RETURNS && saved(p.rows_peak) >= ROWS);
    match good {
        Some(point) => format!(
            "eviction after {} unseen steps holds {} rows at most ({} fewer, {}), and {} of values come back too late",
            grouped(point.unseen),
            grouped(point.rows_peak),
            percent(saved(point.rows_peak)),
            bytes(table.bytes(point.rows_peak)),
            percent(point.lost)
        ),
        None => format!(
            "no eviction of unseen rows within {} steps saves {} of rows with at most {} of values coming back too \
             late",
            grouped(usage.steps),
            percent(ROWS),
            percent(RETURNS)
        ),
    }
}

fn cache(table: &Planned<'_>) -> String {
    let usage = &table.plan.usage;
    let Some(whole) = usage.cache.last() else {
        return "the sample has no figures about caches".to_owned();
    };
    if whole.lru <= 0.0 {
        return "no key is looked up twice, so a cache answers no lookup".to_owned();
    }
    let good = usage.cache.iter().find(|point| point.lru >= REACHED * whole.lru).unwrap_or(whole);
    format!(
        "a cache of {} rows ({}) answers {} of lookups; the largest cache answers {}",
        grouped(good.rows.min(usage.keys)),
        bytes(table.bytes(good.rows.min(usage.keys))),
        percent(good.lru),
        percent(whole.lru)
    )
}

fn numbers(table: &Planned<'_>) -> Option<String> {
    let own = table.plan.sizes.iter().find(|size| size.is_own)?;
    let saved = 1.0 - own.half as f64 / own.f32.max(1) as f64;
    Some(format!(
        "weights of two bytes (f16, bf16) take {} instead of {}, {} less",
        bytes(own.half),
        bytes(own.f32),
        percent(saved)
    ))
}

fn growth(table: &Planned<'_>) -> Option<String> {
    let law = table.plan.usage.heaps.as_ref()?;
    let trust = match law.foresight {
        Some(miss) if miss.abs() > FORESIGHT => format!(
            "; this is not reliable: the law of the first half of the sample misses its end by {:+.0} %",
            100.0 * miss
        ),
        _ => String::new(),
    };
    Some(format!(
        "twice the data brings {:.2} times the keys (keys ~ rows^{:.3}, within {} where it was seen){trust}",
        2f64.powf(law.beta),
        law.beta,
        percent(law.error)
    ))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use zillion_embedding::capacity::{Grid, Tracker};
    use zillion_feature::FeatureKey;
    use zillion_rows::{InitializerSpec, OptimizerSpec, SegmentSpec, TableSpec};
    use zillion_trainer::TablePlan;

    use super::*;

    fn spec() -> TableSpec {
        TableSpec {
            seed: 1,
            ..TableSpec::new(
                "ids",
                vec![SegmentSpec::new(
                    "vector",
                    8,
                    InitializerSpec::Constant { value: 0.0 },
                    OptimizerSpec::Sgd { lr: 0.1 },
                )],
            )
        }
    }

    #[test]
    fn rare_keys_are_seen() {
        let grow = Some(zillion_rows::Growth { at: 7, from: None });
        let spec = TableSpec { grow, ..spec() };
        let mut tracker = Tracker::new(Grid::of(&spec), 1 << 20);
        // The sample has a hundred keys that occur in every step, and in each step one key that
        // occurs only once.
        for step in 0..500u64 {
            let ids = (0..100).chain([1000 + step]).map(|id| (FeatureKey::from_u64(id), 1));
            tracker.step(101, ids);
        }
        let plan = TablePlan {
            table: "ids".to_owned(),
            usage: tracker.finish(),
            more: Vec::new(),
            sizes: Vec::new(),
            undivided: Vec::new(),
        };
        let said = advise(&Planned { spec: &spec, plan: &plan, shards: 1 }).join("\n");
        // Admission at 10 occurrences removes 500 of 600 rows, and 9 values of each of the other
        // 100 keys: 900 of 50,500 values.
        assert!(
            said.contains("admission count 10 removes 83.3 % of rows and 1.8 % of values"),
            "{said}"
        );
        assert!(said.contains("grow at 7 updates: at most 100 of 600 keys become full"), "{said}");
        assert!(said.contains("eviction after 1 unseen steps holds 102 rows"), "{said}");
        assert!(said.contains("a cache of 128 rows"), "{said}");
    }
}
