//! The text of a feature in a drafted job.

use std::fmt::Write as _;

use toml::Value;
use zillion_datatools::Guessed;
use zillion_feature::RawType;

use super::{one_line, quoted};

/// Writes the section of a feature with this name. `column` is the column that it reads.
pub(super) fn write(text: &mut String, name: &str, column: &str, meaning: &Guessed) {
    let mut section = |kind: &str, reason: &str| {
        let _ = writeln!(text, "[features.{name}]  # {}", one_line(reason));
        if name != column {
            let _ = writeln!(text, "column = {}", quoted(column));
        }
        let _ = writeln!(text, "kind = \"{kind}\"");
    };
    let word = |raw: &RawType| match raw {
        RawType::I64 => "i64",
        RawType::U64 => "u64",
        RawType::String => "string",
    };
    match meaning {
        Guessed::Id { raw, reason } => {
            section("id", reason);
            if *raw != RawType::I64 {
                let _ = writeln!(text, "type = \"{}\"", word(raw));
            }
        }
        Guessed::Ids { raw, reason } => {
            section("ids", reason);
            let _ = writeln!(text, "type = \"{}\"\npooling = \"mean\"", word(raw));
        }
        Guessed::Weighted { raw, reason } => {
            section("ids", reason);
            let _ = writeln!(text, "type = \"{}\"\npooling = \"sum\"", word(raw));
        }
        Guessed::Numeric { log, missing, reason } => {
            section("numeric", reason);
            let transform = if *log { "log1p" } else { "standardise" };
            let _ = writeln!(text, "transform = \"{transform}\"");
            if let Some(missing) = missing {
                let missing = Value::from(*missing);
                let _ = writeln!(text, "missing = {missing}  # the median stands for it");
            }
        }
        Guessed::Vector { size, has_gaps, reason } => {
            section("vector", reason);
            let _ = writeln!(text, "size = {size}");
            if *has_gaps {
                let _ =
                    writeln!(text, "missing = 0.0  # stands for each float of a missing vector");
            }
        }
        Guessed::Time { unit, order, reason } => {
            section("bucketized", reason);
            let _ = writeln!(text, "buckets = 16\nderive = \"days\"");
            if let Some(Ok(unit)) = unit.map(Value::try_from) {
                let _ = writeln!(text, "time_unit = {unit}");
            }
            if let Some(Ok(order)) = order.map(Value::try_from) {
                let _ = writeln!(text, "date_order = {order}");
            }
        }
        Guessed::Left(_) => {}
    }
}
