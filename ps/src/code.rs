//! The stable codes of errors, which cross a wire and stand in logs.

use std::fmt;

use zillion_embedding::Error as TableError;

/// Declares the codes of errors, each with its number on the wire and its name in logs.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// The stable code of an error. Numbers and names never change and are never used again.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorCode {
            /// Returns the number of the code on the wire.
            pub fn number(self) -> u16 {
                match self { $(Self::$variant => $number,)* }
            }

            /// Returns the code with a number. Returns [`ErrorCode::Unknown`] for a number that a
            /// later version of the program has added.
            pub fn of_number(number: u16) -> Self {
                match number { $($number => Self::$variant,)* _ => Self::Unknown }
            }

            /// Returns the name of the code in logs and in error texts.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }
    };
}

codes! {
    /// An error of another version of the program.
    Unknown = 0, "unknown";
    /// A call that the contract of a step does not allow at this moment.
    Order = 1, "order";
    /// An invalid argument of a call.
    Argument = 2, "argument";
    /// A call after an update that failed half way.
    Broken = 3, "broken";
    /// The end of a generation.
    Rewound = 4, "rewound";
    /// A frame or a field of a message that is not valid.
    Frame = 5, "frame";
    /// A message that would exceed a limit of the server.
    TooLarge = 6, "too_large";
    /// A client without the right to make a call.
    Forbidden = 7, "forbidden";
    /// A client whose version, job or tables differ from those of the run.
    Mismatched = 8, "mismatched";
    /// A work that was not begun before its deadline.
    Deadline = 9, "deadline";
    /// A server that has no run, or a run that has not begun.
    NoRun = 10, "no_run";
    /// A server or a client that cannot start.
    Start = 11, "start";
    /// A generation that an operator has ended, to set the run back to a checkpoint.
    Restored = 12, "restored";
    /// A run that has ended, because a trainer has ended with an error.
    Aborted = 13, "aborted";
    /// A setting of a table that is out of range.
    Spec = 100, "table_spec";
    /// A plan, a buffer or a file that does not fit a table.
    Mismatch = 101, "table_mismatch";
    /// An operation on several tables that is not possible now.
    Misuse = 102, "table_misuse";
    /// A vocabulary with more rows than the table may have.
    TooManyRows = 103, "table_too_many_rows";
    /// A shard whose row numbers are all in use.
    ShardFull = 104, "table_shard_full";
    /// A vocabulary that is not in ascending order.
    Vocabulary = 105, "table_vocabulary";
    /// A vocabulary for a dynamic table.
    NotDense = 106, "table_not_dense";
    /// A file of a checkpoint or of a version that differs from its manifest.
    Part = 107, "table_part";
    /// A spill file that differs from the bytes that were written to it.
    Spill = 108, "table_spill";
    /// A lack of memory, or a file that cannot be read or written.
    Device = 109, "device";
    /// A row source that failed.
    Source = 110, "row_source";
}

impl ErrorCode {
    /// Returns the code of an error of the tables.
    pub(crate) fn of_tables(error: &TableError) -> Self {
        match error {
            TableError::Spec { .. } => Self::Spec,
            TableError::Mismatch { .. } => Self::Mismatch,
            TableError::Misuse { .. } => Self::Misuse,
            TableError::TooManyRows { .. } => Self::TooManyRows,
            TableError::ShardFull { .. } => Self::ShardFull,
            TableError::Vocabulary { .. } => Self::Vocabulary,
            TableError::NotDense { .. } => Self::NotDense,
            TableError::Part { .. } => Self::Part,
            TableError::Spill { .. } => Self::Spill,
            TableError::Device(_) | TableError::Gpu(_) => Self::Device,
            TableError::Source(_) => Self::Source,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_known() {
        for (i, &code) in ErrorCode::ALL.iter().enumerate() {
            assert_eq!(ErrorCode::of_number(code.number()), code);
            for &other in &ErrorCode::ALL[..i] {
                assert_ne!(code.name(), other.name());
                assert_ne!(code.number(), other.number());
            }
        }
        assert_eq!(ErrorCode::of_number(u16::MAX), ErrorCode::Unknown);
    }
}
