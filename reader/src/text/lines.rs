//! The lines of a chunk, for the grammars whose rows are lines: JSON lines and libsvm.

use super::settings::Grammar;

/// An iterator over the lines of a chunk that hold a row, without their line ends.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    grammar: Grammar,
    input: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> Lines<'a> {
    /// Returns the lines of a chunk.
    pub fn new(grammar: Grammar, input: &'a [u8]) -> Self {
        Self { grammar, input, start: 0, end: 0 }
    }

    /// Returns the byte at which the line that [`Lines::advance`] returned last starts.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Returns the next line that holds a row. Lines of white space and comments of libsvm are
    /// skipped.
    #[inline]
    pub fn advance(&mut self) -> Option<&'a [u8]> {
        while self.end < self.input.len() {
            self.start = self.end;
            let rest = &self.input[self.start..];
            let line = match memchr::memchr(b'\n', rest) {
                Some(at) => {
                    self.end += at + 1;
                    &rest[..at]
                }
                None => {
                    self.end = self.input.len();
                    rest
                }
            };
            if !is_blank(self.grammar, line) {
                return Some(line);
            }
        }
        self.start = self.input.len();
        None
    }
}

/// Returns whether a line holds no row.
pub(super) fn is_blank(grammar: Grammar, line: &[u8]) -> bool {
    match line.trim_ascii_start() {
        [] => true,
        [b'#', ..] => grammar == Grammar::Svm,
        _ => false,
    }
}
