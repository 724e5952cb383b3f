//! The operations of the wire.

/// Declares the operations, each with its number on the wire and its name in logs.
macro_rules! ops {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// The operation that a frame asks for, or the kind of an answer. Numbers never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Op {
            $($(#[$doc])* $variant,)*
        }

        impl Op {
            /// Returns the number of the operation on the wire.
            pub(crate) fn number(self) -> u16 {
                match self { $(Self::$variant => $number,)* }
            }

            /// Returns the operation with a number, or `None` if there is none.
            pub(crate) fn of_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// Returns the name of the operation in logs and metrics.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// All operations, in the order of their numbers.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }
    };
}

ops! {
    /// The answer to an operation that succeeded.
    Answer = 1, "answer";
    /// The answer to an operation that failed.
    Failure = 2, "failure";
    /// The first frame of a connection: it names the client and its session.
    Hello = 3, "hello";
    /// A question whether the server is alive. The server answers it at once.
    Ping = 4, "ping";
    /// The question for the state of the server.
    Status = 5, "status";
    /// The beginning of a generation by the first trainer.
    Open = 6, "open";
    /// The entry of another trainer into a generation.
    Join = 7, "join";
    /// The end of the preparation of the tables.
    Start = 8, "start";
    /// The end of a session by its client.
    Close = 9, "close";
    /// The plan of a later pull.
    Announce = 20, "announce";
    /// The question for the rows of a plan.
    Pull = 21, "pull";
    /// The gradients of a plan.
    Push = 22, "push";
    /// The question for the norm of the staged gradients.
    Norm = 23, "norm";
    /// The update with the staged gradients.
    Apply = 24, "apply";
    /// The whole-table rules after gradients that were applied at once.
    Sweep = 25, "sweep";
    /// The end of a step without its gradients.
    Discard = 26, "discard";
    /// The parts of a step that the trainers exchange.
    Exchange = 27, "exchange";
    /// The question for the loss of the regularisers.
    Regulariser = 28, "regulariser";
    /// The beginning of the clocks of trainers that do not wait for each other in each step.
    BeginPace = 29, "begin_pace";
    /// The gradients of a trainer, which the server applies when they arrive.
    Update = 30, "update";
    /// The question that waits until the updates of all trainers up to a step are applied.
    Settle = 31, "settle";
    /// The end of a step whose gradients have no finite norm. Its keys count.
    Skip = 32, "skip";
    /// The question for rows that the server lends, with their optimizer state.
    Take = 33, "take";
    /// Lent rows that have changed and come back.
    GiveBack = 34, "give_back";
    /// The question for all rows of a table, which the server lends.
    TakeTable = 35, "take_table";
    /// The question for rows as evaluation reads them.
    Lookup = 40, "lookup";
    /// The vocabulary of a dense table.
    Prefill = 41, "prefill";
    /// Rows of a version, with which a table begins.
    Adopt = 42, "adopt";
    /// The question for the statistics of the tables.
    Statistics = 43, "statistics";
    /// The beginning of a checkpoint.
    BeginCheckpoint = 60, "begin_checkpoint";
    /// The beginning of the tracking of changes for checkpoints.
    FollowCheckpoints = 61, "follow_checkpoints";
    /// The question for the mark of the last checkpoint.
    CheckpointMark = 62, "checkpoint_mark";
    /// The continuation of a checkpoint.
    PollCheckpoint = 63, "poll_checkpoint";
    /// The end of a checkpoint.
    FinishCheckpoint = 64, "finish_checkpoint";
    /// The abandonment of a checkpoint.
    AbandonCheckpoint = 65, "abandon_checkpoint";
    /// The replacement of all rows by those of a checkpoint.
    Restore = 66, "restore";
    /// The news that a checkpoint is complete, and which ones the run keeps.
    Committed = 67, "committed";
    /// The beginning of the tracking of changes for versions.
    TrackChanges = 80, "track_changes";
    /// The layer of a version, which the server writes.
    WriteLayer = 81, "write_layer";
    /// The end of a dirty epoch.
    EndDirtyEpoch = 82, "end_dirty_epoch";
    /// The question for a piece of a file of the layer that the server has written.
    ReadLayer = 83, "read_layer";
    /// The parts of a base, which the server sends to the registry.
    WriteBase = 84, "write_base";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_known() {
        for (i, &op) in Op::ALL.iter().enumerate() {
            assert_eq!(Op::of_number(op.number()), Some(op));
            assert!(Op::ALL[..i].iter().all(|o| o.name() != op.name()));
        }
        assert_eq!(Op::of_number(0), None);
    }
}
