//! Which differences between two jobs forbid that one goes on from the other's checkpoint.
//!
//! What may differ: where the data lies, how long to train, how often to checkpoint. Everything else
//! would silently make a third job of the two.

use toml::Value;

/// Keys that a resumed run may change.
const FREE: [&str; 5] =
    ["data.root", "train.epochs", "train.checkpoint_every", "train.keep", "name"];

/// The first key (dotted) in which two portable jobs differ in a way that matters, with both values.
pub(crate) fn difference(saved: &Value, given: &Value) -> Option<(String, String, String)> {
    differ("", Some(saved), Some(given))
}

fn differ(
    path: &str,
    saved: Option<&Value>,
    given: Option<&Value>,
) -> Option<(String, String, String)> {
    if FREE.contains(&path) || saved == given {
        return None;
    }
    let (Some(Value::Table(a)), Some(Value::Table(b))) = (saved, given) else {
        return Some((path.to_owned(), shown(saved), shown(given)));
    };
    let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().find_map(|key| {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        differ(&path, a.get(key), b.get(key))
    })
}

fn shown(value: Option<&Value>) -> String {
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
        let without = value("[data]\nroot = 'b'\n[train]\nepochs = 9\nbatch_size = 5");
        assert_eq!(
            difference(&saved, &without),
            Some(("seed".into(), "1".into(), "absent".into()))
        );
    }
}
