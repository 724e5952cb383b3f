//! The functions of a set that record and find the marks of its checkpoints. With a mark, a later
//! checkpoint can hold only the changes since an earlier one.

use crate::error::{Error, Result};
use crate::set::TableSet;
use crate::snapshot::marks::{KEPT, Marks, SnapshotMark};
use crate::table::Table;

impl TableSet {
    /// Begins to record the information that checkpoints of changes need
    /// ([`TableSet::begin_changes`]), in tables that are not always written whole. The records take
    /// 16 bytes for each key whose row is removed, and for each key whose row is spilled after a
    /// change. A checkpoint of changes can be based on any checkpoint that is finished or restored
    /// after this call.
    pub fn follow_snapshots(&mut self) {
        if self.marks.is_none() {
            self.marks = Some(Marks::default());
            self.tables_mut().for_each(Table::follow_snapshots);
        }
    }

    /// Returns the mark of the last checkpoint that was finished or restored. Returns `None` if
    /// there is no such checkpoint since [`TableSet::follow_snapshots`].
    pub fn snapshot_mark(&self) -> Option<SnapshotMark> {
        let marks = self.marks.as_ref()?;
        let &generation = marks.generations.last()?;
        Some(SnapshotMark { history: marks.history, generation })
    }

    /// Returns the generation of a mark, or an error if the changes after the mark are no longer
    /// known.
    pub(crate) fn generation_of(&self, mark: SnapshotMark) -> Result<u32> {
        let known = self.marks.as_ref().is_some_and(|marks| {
            marks.history == mark.history && marks.generations.contains(&mark.generation)
        });
        if !known {
            let reason =
                "the changes since that checkpoint are no longer known; write a whole checkpoint";
            return Err(Error::misuse(reason));
        }
        Ok(mark.generation)
    }

    /// Adds the mark of a checkpoint that is finished. `generation` ended when the checkpoint
    /// began.
    pub(crate) fn mark(&mut self, generation: u32) {
        let Some(marks) = &mut self.marks else { return };
        marks.generations.push(generation);
        let old = marks.generations.len().saturating_sub(KEPT);
        marks.generations.drain(..old);
        let oldest = marks.generations[0];
        let tombstones = self.tables_mut().filter_map(|table| table.tombstones.as_mut());
        tombstones.for_each(|tombstones| tombstones.oldest = oldest);
    }

    /// Begins another history of checkpoints, which has no mark yet. So the next checkpoint must be
    /// whole.
    pub(crate) fn forget_marks(&mut self) {
        if let Some(marks) = &mut self.marks {
            marks.history += 1;
            marks.generations.clear();
        }
    }

    /// Begins another history of checkpoints. Its first mark is the mark of the checkpoint that has
    /// just been restored.
    pub(crate) fn mark_restored(&mut self) {
        if self.marks.is_none() {
            return;
        }
        self.forget_marks();
        // If the numbers of generations are used up, there is no mark, and checkpoints are whole.
        let Some(generation) = self.generations.cut() else { return };
        self.seal_changes();
        for table in self.tables_mut() {
            table.follow_snapshots();
            table.tombstones.iter_mut().for_each(|tombstones| tombstones.begin(generation));
        }
        self.mark(generation);
    }
}
