//! The division of bytes into records and cells, by the state machine of csv-core.
//!
//! Empty lines are skipped, as in csv-core. In a file with a single column, an empty cell must
//! therefore be written as `""`, because an empty line would not count as a record.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

/// The characters that separate and quote cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The character between cells.
    pub delimiter: u8,
    /// The character around cells that contain delimiters, or `None` if no character quotes cells.
    pub quote: Option<u8>,
}

/// A reader of the records of a chunk. The chunk must begin at the start of a record.
pub struct Records<'a> {
    reader: Reader,
    input: &'a [u8],
    consumed: usize,
    /// The text of all cells of the current record without quotes. `ends` holds the end of each
    /// cell in it.
    text: Vec<u8>,
    ends: Vec<usize>,
    cells: usize,
}

/// The result of [`Records::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A record that ends with a line end.
    Record,
    /// A record that ends at the end of the chunk, without a line end.
    LastRecord,
    /// The end of the chunk.
    End,
    /// The end of the chunk inside an open quote.
    OpenQuote,
}

impl<'a> Records<'a> {
    /// Returns a reader of the records of a chunk.
    pub fn new(dialect: Dialect, input: &'a [u8]) -> Self {
        let mut builder = ReaderBuilder::new();
        builder.delimiter(dialect.delimiter);
        match dialect.quote {
            Some(quote) => builder.quote(quote),
            None => builder.quoting(false),
        };
        let mut reader = builder.build();
        // A csv-core reader removes a byte order mark from its first input. Only a file may start
        // with this mark, and `Chunks` has already removed it. The empty line adds no record, and
        // after it the chunk is no longer the first input.
        reader.read_record(b"\n", &mut [0], &mut [0]);
        Self { reader, input, consumed: 0, text: vec![0; 1024], ends: vec![0; 64], cells: 0 }
    }

    /// Returns the number of bytes of the chunk that have been consumed by the records so far.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Reads the next record and returns the result.
    pub fn advance(&mut self) -> Step {
        let (mut written, mut ended) = (0, 0);
        loop {
            let rest = &self.input[self.consumed..];
            // At the end of the chunk, one more line end is added. Outside quotes, it ends the
            // record or has no effect. Inside quotes, it is text. This distinguishes an open quote
            // from a last line without a line end.
            let at_end = rest.is_empty();
            let input = if at_end { b"\n" } else { rest };
            let (result, read, out, cells) =
                self.reader.read_record(input, &mut self.text[written..], &mut self.ends[ended..]);
            if !at_end {
                self.consumed += read;
            }
            written += out;
            ended += cells;
            match result {
                ReadRecordResult::Record => {
                    self.cells = ended;
                    return if at_end { Step::LastRecord } else { Step::Record };
                }
                ReadRecordResult::OutputFull => self.text.resize(self.text.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                ReadRecordResult::InputEmpty if at_end && read > 0 => {
                    return if out > 0 { Step::OpenQuote } else { Step::End };
                }
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::End => return Step::End,
            }
        }
    }

    /// Returns the number of cells of the current record.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Returns the cell of the current record at this index.
    #[inline]
    pub fn cell(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }
}

/// Returns the position after the last whole record of `input`, or `None` if `input` contains no
/// whole record.
pub(super) fn last_record_end(dialect: Dialect, input: &[u8]) -> Option<usize> {
    if dialect.quote.is_none_or(|quote| !input.contains(&quote)) {
        // If there are no quotes, every line end ends a record.
        if let Some(at) = input.iter().rposition(|&b| b == b'\n') {
            return Some(at + 1);
        }
    }
    let mut records = Records::new(dialect, input);
    let mut end = None;
    while records.advance() == Step::Record {
        end = Some(records.consumed());
    }
    end
}
