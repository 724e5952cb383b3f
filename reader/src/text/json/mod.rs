//! JSON lines: one object a line, columns by key.
//!
//! serde drives the parser; its visitors write a line's values into one flat row, so that no tree is
//! built and what a line lacks is known. A key that no field reads is passed over unparsed.

mod decode;
mod row;

use std::collections::HashMap;

pub(crate) use decode::JsonRows;
pub(crate) use row::{JsonRow, Value};

use super::Grammar;
use super::lines::Lines;

/// Which keys of an object are decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonPlan {
    pub(crate) keys: Keys,
    /// For each field the number of its key.
    pub(crate) key_of: Vec<usize>,
}

/// Keys and their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Whether an object may have keys without a number.
    refuses_others: bool,
}

impl Keys {
    /// The number of a key, which is given one if it has none.
    pub(crate) fn add(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }

    /// Objects may have no other keys.
    pub(crate) fn refuse_others(&mut self) {
        self.refuses_others = true;
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn name(&self, number: usize) -> &str {
        &self.names[number]
    }

    /// The number of a key. `guess`: most lines have their keys in one order.
    #[inline]
    fn find(&self, name: &str, guess: usize) -> Option<usize> {
        if self.names.get(guess).is_some_and(|known| known == name) {
            return Some(guess);
        }
        self.numbers.get(name).copied()
    }
}

/// The keys of the objects of some lines, in order of their first appearance. Lines that cannot be read
/// are passed over, unless no line can be read.
///
/// # Errors
/// What is wrong with the first line.
pub(super) fn columns(text: &[u8]) -> Result<Vec<String>, String> {
    let mut lines = Lines::new(Grammar::Json, text);
    let mut keys = Keys::default();
    let mut first_problem = None;
    let mut readable = false;
    while let Some(line) = lines.advance() {
        match row::keys_of(line, &mut keys) {
            Ok(()) => readable = true,
            Err(problem) => {
                first_problem.get_or_insert(problem);
            }
        }
    }
    match first_problem {
        Some(problem) if !readable => Err(problem),
        _ => Ok(keys.names),
    }
}
