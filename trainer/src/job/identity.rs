//! The differences between two jobs that prevent one job from continuing the other's checkpoint.
//!
//! The jobs may differ in the place of the data, the length of training, and the frequency of
//! checkpoints. Any other difference would mix two jobs in one result, and no error would show it.

use toml::Value;

/// The keys that a resumed run may change.
const FREE: [&str; 15] = [
    "data.root",
    // Other files are allowed at the end of an epoch, because they are the next rows of a stream of
    // data. In the middle of an epoch, the training files are compared with the files of the
    // checkpoint (`Checkpoint::check_files`).
    "data.train",
    "data.valid",
    "data.test",
    // A run that was stopped by its bad rows may continue with a higher limit. The bad rows stay
    // left out.
    "data.max_bad_rows",
    "data.rejects",
    // This unit only measures how fresh versions are.
    "columns.event_time_unit",
    "train.epochs",
    "train.checkpoint_every",
    "train.full_every",
    "train.keep",
    "train.on_server_loss",
    // A run that has begun does not read this registry again.
    "train.warm_start.registry",
    // Passes do not change what a model computes.
    "train.passes_off",
    "name",
];

/// Returns the first dotted key in which two portable jobs differ, with both values. Ignores the
/// keys that a resumed run may change. Returns `None` if no other key differs.
pub(crate) fn difference(saved: &Value, given: &Value) -> Option<(String, String, String)> {
    find_difference("", Some(saved), Some(given)).or_else(|| find_order_difference(saved, given))
}

/// Returns the first difference that prevents a new run from beginning with another run's
/// checkpoint. The sections for data, training and evaluation may differ. Returns `None` if no
/// other section differs.
pub(crate) fn difference_of_model(
    saved: &Value,
    given: &Value,
) -> Option<(String, String, String)> {
    let model = |job: &Value| {
        let mut job = job.clone();
        if let Some(root) = job.as_table_mut() {
            ["data", "train", "eval", "stream", "join"]
                .into_iter()
                .for_each(|section| drop(root.remove(section)));
        }
        job
    };
    difference(&model(saved), &model(given))
}

/// Returns a difference in the order of features or of labels, which is the order of the model's
/// inputs. This order needs its own comparison, because two TOML tables are equal even if their
/// order differs. Returns `None` if the orders are the same.
fn find_order_difference(saved: &Value, given: &Value) -> Option<(String, String, String)> {
    ["features", "labels"].into_iter().find_map(|section| {
        let names = |job: &Value| -> Vec<String> {
            let table = job.get(section).and_then(Value::as_table);
            table.into_iter().flat_map(|t| t.keys().cloned()).collect()
        };
        let (saved, given) = (names(saved), names(given));
        let at = (0..saved.len()).find(|&i| saved.get(i) != given.get(i))?;
        let describe = |names: &[String]| {
            names.get(at).map_or_else(|| "absent".into(), |n| format!("`{n}` at place {}", at + 1))
        };
        Some((format!("the order of {section}"), describe(&saved), describe(&given)))
    })
}

fn is_free(path: &str) -> bool {
    // The place of a side table is as free as the place of the data.
    FREE.contains(&path) || (path.starts_with("side.") && path.ends_with(".path"))
}

fn find_difference(
    path: &str,
    saved: Option<&Value>,
    given: Option<&Value>,
) -> Option<(String, String, String)> {
    if is_free(path) || saved == given {
        return None;
    }
    let (Some(Value::Table(a)), Some(Value::Table(b))) = (saved, given) else {
        return Some((path.to_owned(), format_value(saved), format_value(given)));
    };
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().find_map(|key| {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        find_difference(&path, a.get(key), b.get(key))
    })
}

fn format_value(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        toml::from_str::<toml::Table>(text).unwrap().into()
    }

    #[test]
    fn what_may_change_may_and_the_rest_is_named() {
        let saved = value("seed = 1\n[data]\nroot = 'a'\n[train]\nepochs = 3\nbatch_size = 5");
        let moved = value("seed = 1\n[data]\nroot = 'b'\n[train]\nepochs = 9\nbatch_size = 5");
        assert_eq!(difference(&saved, &moved), None);
        let other = value("seed = 1\n[data]\nroot = 'b'\n[train]\nepochs = 9\nbatch_size = 6");
        assert_eq!(
            difference(&saved, &other),
            Some(("train.batch_size".into(), "5".into(), "6".into()))
        );
        let warm = |registry: &str, version: u32| {
            value(&format!("[train.warm_start]\nregistry = '{registry}'\nversion = {version}"))
        };
        assert_eq!(difference(&warm("a", 1), &warm("b", 1)), None);
        let other = difference(&warm("a", 1), &warm("b", 2));
        assert_eq!(other.unwrap().0, "train.warm_start.version");
        // A run that begins from another run may learn in a different way.
        let froze = value("seed = 1\n[train]\nfreeze = ['mlp.*']\n[train.loss.x]\nkind = 'focal'");
        let plain = value("seed = 1\n[train]\nepochs = 1");
        assert_eq!(difference_of_model(&plain, &froze), None);
        assert!(difference(&plain, &froze).is_some());
        let ab = value("[features.a]\nkind = 'id'\n[features.b]\nkind = 'id'");
        let ba = value("[features.b]\nkind = 'id'\n[features.a]\nkind = 'id'");
        assert_eq!(
            difference(&ab, &ba),
            Some((
                "the order of features".into(),
                "`a` at place 1".into(),
                "`b` at place 1".into()
            ))
        );
        let without = value("[data]\nroot = 'b'\n[train]\nepochs = 9\nbatch_size = 5");
        assert_eq!(
            difference(&saved, &without),
            Some(("seed".into(), "1".into(), "absent".into()))
        );
    }
}
