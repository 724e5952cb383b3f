//! Following the checkpoints of a set, so that a later one can hold only what changed since.

use crate::error::{Error, Result};
use crate::set::TableSet;
use crate::snapshot::marks::{KEPT, Marks, SnapshotMark};

impl TableSet {
    /// Remembers from now on what checkpoints of changes need ([`TableSet::begin_changes`]), in
    /// tables that are not written whole: 16 bytes a key whose row goes, or is spilled after it has
    /// changed. The first checkpoint that is finished from here on, or restored, is the first that
    /// another one can stand on.
    pub fn follow_snapshots(&mut self) {
        if self.marks.is_none() {
            self.marks = Some(Marks::default());
            self.for_each_table(|table| table.follow_snapshots());
        }
    }

    /// The mark of the last checkpoint that was finished or restored; `None` where there is none
    /// yet, or nobody follows them.
    pub fn snapshot_mark(&self) -> Option<SnapshotMark> {
        let marks = self.marks.as_ref()?;
        marks
            .generations
            .last()
            .map(|&generation| SnapshotMark { history: marks.history, generation })
    }

    /// The generation of a mark, if all that changed after it is known.
    pub(crate) fn generation_of(&self, mark: SnapshotMark) -> Result<u32> {
        let known = self.marks.as_ref().is_some_and(|marks| {
            marks.history == mark.history && marks.generations.contains(&mark.generation)
        });
        if !known {
            let reason = "the changes since that checkpoint are not known any more; write a whole checkpoint";
            return Err(Error::misuse(reason));
        }
        Ok(mark.generation)
    }

    /// Notes that a checkpoint is there that began with the end of a generation.
    pub(crate) fn mark(&mut self, generation: u32) {
        let Some(marks) = &mut self.marks else { return };
        marks.generations.push(generation);
        let old = marks.generations.len().saturating_sub(KEPT);
        marks.generations.drain(..old);
        let oldest = marks.generations[0];
        self.for_each_table(|table| table.forget_tombstones(oldest));
    }

    /// Begins another history, whose first mark is what has just been restored.
    pub(crate) fn mark_restored(&mut self) {
        let Some(marks) = &mut self.marks else { return };
        marks.history += 1;
        marks.generations.clear();
        // Without a number for the next generation there is no mark, and checkpoints are whole.
        let Some(generation) = self.generations.cut() else { return };
        self.seal_changes();
        self.for_each_table(|table| {
            table.follow_snapshots();
            table.cut_tombstones(generation);
        });
        self.mark(generation);
    }

    fn for_each_table(&mut self, mut f: impl FnMut(&mut crate::table::Table)) {
        for shard in &mut self.shards {
            (0..self.shapes.len()).for_each(|table| f(shard.table_mut(table)));
        }
    }
}
