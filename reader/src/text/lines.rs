//! The lines of a chunk, for the grammars in which each row is one line: JSON lines and libsvm.

use super::settings::Grammar;

/// A cursor over the lines of a chunk that hold a row. The lines are returned without their line
/// ends.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    grammar: Grammar,
    input: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> Lines<'a> {
    /// Returns a cursor over the lines of a chunk.
    pub fn new(grammar: Grammar, input: &'a [u8]) -> Self {
        Self { grammar, input, start: 0, end: 0 }
    }

    /// Returns the start of the line that [`Lines::advance`] returned last, as a byte offset in the
    /// chunk.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Returns the next line that holds a row, or `None` at the end. Lines of white space are
    /// skipped, and in libsvm also comment lines.
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

/// Calls `read` with each line of a text that holds a row. A line that cannot be read is ignored if
/// any other line can be read.
///
/// # Errors
/// Returns the problem of the first line if none of the lines can be read.
pub(super) fn read_some<'a>(
    grammar: Grammar,
    text: &'a [u8],
    mut read: impl FnMut(&'a [u8]) -> Result<(), String>,
) -> Result<(), String> {
    let mut lines = Lines::new(grammar, text);
    let mut result = Ok(());
    let mut readable = false;
    while let Some(line) = lines.advance() {
        let read = read(line);
        readable |= read.is_ok();
        result = result.and(read);
    }
    if readable { Ok(()) } else { result }
}

/// Returns whether a line holds no row, because it is blank or a comment.
pub(super) fn is_blank(grammar: Grammar, line: &[u8]) -> bool {
    match line.trim_ascii_start() {
        [] => true,
        [b'#', ..] => grammar == Grammar::Svm,
        _ => false,
    }
}
