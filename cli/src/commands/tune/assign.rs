//! The change of keys in a job file whose defaults are not written out.
//!
//! In a key of a tune, the table `*` stands for every table, also for a table that sets the key
//! itself.

use toml::{Table, Value};

const EVERY_TABLE: &str = "*";

/// Sets a key of a job. `resolved` is the same job with every default. If the job does not write
/// the table around the key, the table is copied from there, because an optimizer, for example, is
/// nothing without its kind.
pub(super) fn assign(job: &mut Table, resolved: &Table, path: &[String], value: &Value) {
    let [section, table, rest @ ..] = path else { return set(job, resolved, path, value) };
    let (Some(first), true) = (rest.first(), section == "tables" && table == EVERY_TABLE) else {
        return set(job, resolved, path, value);
    };
    let empty = Table::new();
    let resolved = resolved.get(section).and_then(Value::as_table).unwrap_or(&empty);
    let Some(tables) = enter(job, section, None) else { return };
    let mut base = None;
    for (name, of) in resolved {
        let Some(of) = of.as_table() else { continue };
        match tables.get_mut(name).and_then(Value::as_table_mut) {
            Some(own) if own.contains_key(first) => set(own, of, rest, value),
            _ => base = base.or(Some(of)),
        }
    }
    if let Some(base) = base
        && let Some(every) = enter(tables, EVERY_TABLE, None)
    {
        set(every, base, rest, value);
    }
}

/// Returns the value of a key in a resolved job as text, or `None` if the key is absent. For the
/// table `*`, the text lists the different values.
pub(super) fn describe(resolved: &Table, path: &[String]) -> Option<String> {
    let [section, table, rest @ ..] = path else { return find(resolved, path).map(format_value) };
    if section != "tables" || table != EVERY_TABLE {
        return find(resolved, path).map(format_value);
    }
    let tables = resolved.get(section)?.as_table()?;
    let mut texts: Vec<String> = Vec::new();
    for text in tables.values().filter_map(|of| find(of.as_table()?, rest)).map(format_value) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Formats a value as a job file has it, but a text without quotes, and very small and very large
/// numbers with an exponent.
pub(super) fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Float(number) if *number != 0.0 && !(1e-3..1e6).contains(&number.abs()) => {
            format!("{number:e}")
        }
        value => value.to_string(),
    }
}

fn find<'a>(table: &'a Table, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let value = table.get(first)?;
    if rest.is_empty() { Some(value) } else { find(value.as_table()?, rest) }
}

fn set(table: &mut Table, resolved: &Table, path: &[String], value: &Value) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        table.insert(first.clone(), value.clone());
        return;
    }
    let around = resolved.get(first).and_then(Value::as_table);
    let Some(inner) = enter(table, first, around) else { return };
    set(inner, around.unwrap_or(&Table::new()), rest, value);
}

/// Returns the table at a key. An absent table is a copy of `around`, or empty. A value that is not
/// a table is replaced, and the reader of the job refuses the key.
fn enter<'a>(table: &'a mut Table, key: &str, around: Option<&Table>) -> Option<&'a mut Table> {
    if !table.get(key).is_some_and(Value::is_table) {
        table.insert(key.to_owned(), Value::Table(around.cloned().unwrap_or_default()));
    }
    table.get_mut(key)?.as_table_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().expect("TOML")
    }

    fn path(key: &str) -> Vec<String> {
        key.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn the_table_around_an_absent_key_is_copied() {
        let resolved = table("[train]\nbatch_size = 10\noptimizer = { kind = 'adam', lr = 0.1 }");
        let mut job = table("[train]\nbatch_size = 10");
        assign(&mut job, &resolved, &path("train.optimizer.lr"), &Value::Float(0.5));
        let expected = table("[train]\nbatch_size = 10\noptimizer = { kind = 'adam', lr = 0.5 }");
        assert_eq!(job, expected);
        assert_eq!(describe(&resolved, &path("train.optimizer.lr")).as_deref(), Some("0.1"));
        assert_eq!(describe(&resolved, &path("train.optimizer.eps")), None);
        let texts = [0.0, 1e-6, 2.19e-4, 0.02, 1e30].map(|x| format_value(&Value::Float(x)));
        assert_eq!(texts, ["0.0", "1e-6", "2.19e-4", "0.02", "1e30"]);
    }

    #[test]
    fn every_table_is_also_one_that_sets_the_key_itself() {
        let resolved = table(
            "[tables.a]\ndim = 4\noptimizer = { kind = 'adagrad', lr = 0.1 }\n\
             [tables.b]\ndim = 4\noptimizer = { kind = 'ftrl', lr = 0.2 }",
        );
        let key = path("tables.*.optimizer.lr");
        let mut job = table("[tables.b]\noptimizer = { kind = 'ftrl', lr = 0.2 }");
        assign(&mut job, &resolved, &key, &Value::Float(0.5));
        let expected = table(
            "[tables.b]\noptimizer = { kind = 'ftrl', lr = 0.5 }\n\
             [tables.'*']\noptimizer = { kind = 'adagrad', lr = 0.5 }",
        );
        assert_eq!(job, expected);
        let mut all = resolved.clone();
        assign(&mut all, &resolved, &path("tables.*.dim"), &Value::Integer(8));
        assert_eq!(all, table(&resolved.to_string().replace("dim = 4", "dim = 8")));
        assert_eq!(describe(&resolved, &key).as_deref(), Some("0.1, 0.2"));
        assert_eq!(describe(&resolved, &path("tables.*.dim")).as_deref(), Some("4"));
    }
}
