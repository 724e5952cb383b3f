//! The files that a history writes and reads again: versions, and checkpoints that are written at
//! once or beside training.

use tempfile::TempDir;
use zillion_rows::TableParts;
use zillion_rows::layer::{Layer, Unthrottled, merge_layers};

use super::History;
use crate::compare::assert_same_files;
use crate::model::Model;
use crate::side::files;
use crate::tables::PINNED;

/// A checkpoint that one side is writing beside training, and the checkpoint of the other side,
/// which must be equal.
pub(super) struct Beside {
    side: usize,
    folder: TempDir,
    twin: TempDir,
    expected: Vec<TableParts>,
    /// The number of further steps after which the checkpoint is finished.
    steps: u64,
}

/// A checkpoint that the history may restore later.
pub(super) struct Saved {
    folder: TempDir,
    parts: Vec<TableParts>,
    step: u64,
    model: Option<Model>,
}

/// The last published version: the epoch that ended with this version, and its rows.
pub(super) struct Published {
    epoch: u32,
    layer: Layer,
    /// The number of epochs that have ended without a version since this version.
    skipped: usize,
    /// Whether each side has been restored since this version.
    restored: [bool; 2],
}

impl History {
    /// Begins a checkpoint beside training on one side, and writes a checkpoint at once on the
    /// other side.
    pub(super) fn begin_beside(&mut self) {
        self.finish_beside();
        let side = self.chance.below(2) as usize;
        let (folder, twin) = (self.folder(), self.folder());
        let expected = self.sides[1 - side].checkpoint(twin.path());
        let beginning = &mut self.sides[side];
        beginning.set.begin_snapshot(&beginning.workers, folder.path(), &files()).unwrap();
        let steps = self.chance.below(20);
        self.beside = Some(Beside { side, folder, twin, expected, steps });
    }

    pub(super) fn advance_beside(&mut self) {
        let Some(beside) = &mut self.beside else { return };
        let rows = self.chance.pick(&[0, 10, 100, 1_000, 20_000]);
        let side = &mut self.sides[beside.side];
        side.set.advance_snapshot(&side.workers, rows);
        match beside.steps.checked_sub(1) {
            Some(left) => beside.steps = left,
            None => self.finish_beside(),
        }
    }

    pub(super) fn finish_beside(&mut self) {
        let Some(beside) = self.beside.take() else { return };
        let side = &mut self.sides[beside.side];
        let parts = side.set.finish_snapshot(&side.workers).unwrap();
        assert_eq!(parts, beside.expected, "a checkpoint beside training");
        assert_same_files(beside.folder.path(), beside.twin.path());
        let kept: u64 = side.set.statistics().iter().map(|s| s.snapshot_bytes).sum();
        assert_eq!(kept, 0, "bytes kept for a checkpoint that is written");
    }

    /// Writes a checkpoint of each side, checks that they have the same bytes, and returns one of
    /// them.
    pub(super) fn checkpoint(&mut self) -> (TempDir, Vec<TableParts>) {
        let (a, b) = (self.folder(), self.folder());
        let parts = self.sides[0].checkpoint(a.path());
        assert_eq!(parts, self.sides[1].checkpoint(b.path()), "checkpoints");
        assert_same_files(a.path(), b.path());
        (a, parts)
    }

    pub(super) fn save(&mut self) {
        let (folder, parts) = self.checkpoint();
        let (step, model) = (self.step, self.model.clone());
        self.saved = Some(Saved { folder, parts, step, model });
    }

    /// Restarts one side from a checkpoint, on another number of shards. The other side continues.
    pub(super) fn move_over(&mut self) {
        self.finish_beside();
        let (folder, parts) = self.checkpoint();
        let side = self.chance.below(2) as usize;
        let shards = self.chance.pick(&[1, 3, 8]);
        self.sides[side].restore(Some(shards), folder.path(), &parts);
        if let Some(published) = &mut self.published {
            published.restored[side] = true;
        }
    }

    /// Restores both sides from the saved checkpoint, even while another checkpoint is being
    /// written.
    pub(super) fn go_back(&mut self) {
        let Some(saved) = &self.saved else { return };
        for side in &mut self.sides {
            let shards = self.chance.pick(&[None, Some(1), Some(3), Some(8)]);
            side.restore(shards, saved.folder.path(), &saved.parts);
        }
        (self.step, self.model) = (saved.step, saved.model.clone());
        self.beside = None;
        self.published = None;
        self.unpinned.fill(PINNED);
    }

    pub(super) fn end_epoch(&mut self) {
        let [a, b] = self.both(|side| side.set.advance_dirty_epoch());
        assert_eq!(a, b, "epochs");
        if let Some(published) = &mut self.published {
            published.skipped += 1;
        }
    }

    /// Publishes a layer with all rows, and a layer with the changes since the last version.
    pub(super) fn publish(&mut self) {
        let [epoch, other] = self.both(|side| side.set.advance_dirty_epoch());
        assert_eq!(epoch, other, "epochs");
        let folder = self.folder();
        let whole = self.sides[0].base(folder.path());
        assert_eq!(whole, self.sides[1].base(folder.path()), "all rows as a layer");
        let layer = self.sides[0].open(folder.path(), &whole);
        if let Some(model) = &self.model {
            model.check_layer(&layer);
        }
        if let Some(last) = self.published.take() {
            let deltas = self.both(|side| side.delta(last.epoch, folder.path()));
            for (delta, restored) in deltas.iter().zip(last.restored) {
                assert!(
                    delta.is_some() || restored || last.skipped > 0,
                    "a delta is not to be had"
                );
            }
            if let [Some(a), Some(b)] = &deltas {
                assert_eq!(a, b, "deltas");
            }
            if let Some(delta) = deltas.iter().flatten().next() {
                let side = &self.sides[0];
                let layers = [&last.layer, &side.open(folder.path(), delta)];
                let (layouts, path) = (side.set.layouts(), folder.path());
                let merged = merge_layers(&files(), path, layouts, &layers, true, &mut Unthrottled);
                let merged = side.open(folder.path(), &merged.unwrap());
                for table in 0..layouts.len() {
                    let same = merged.iter(table).eq(layer.iter(table));
                    assert!(same, "a delta over the version before it, table {table}");
                }
            }
        }
        // The files of the layer stay mapped after their folder is removed.
        self.published = Some(Published { epoch, layer, skipped: 0, restored: [false; 2] });
    }
}
