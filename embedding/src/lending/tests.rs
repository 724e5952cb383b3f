//! Tests of lending: a set that borrows the rows of its steps, and the set that lends them, against
//! one set that has all rows.

use zillion_device::Files;
use zillion_feature::random::{combine, mix64};
use zillion_rows::layer::Unthrottled;
use zillion_rows::{Admission, Eviction, Growth, TableSpec};

use super::*;
use crate::testing::fixtures::*;

/// Returns the specs of all tables whose rows can be lent.
fn lendable() -> Vec<TableSpec> {
    let specs = everything().into_iter().filter(|spec| lending_refusal(spec).is_none());
    let specs: Vec<TableSpec> = specs.collect();
    assert!(specs.len() > 4);
    specs
}

/// A lender and its borrower, and a set that has all rows.
struct Pair {
    whole: TableSet,
    lender: TableSet,
    borrower: TableSet,
    workers: Workers,
    ids: u64,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let set = |n| TableSet::new(lendable(), shards(n)).unwrap();
        let mut borrower = set(1 + seed as usize % 4);
        borrower.begin_borrowing().unwrap();
        let (mut whole, mut lender) = (set(3), set(1 + seed as usize % 5));
        let workers = workers(2);
        for set in [&mut whole, &mut lender] {
            set.follow_snapshots();
            set.track_changes(&workers, 4).unwrap();
            for table in borrower.whole_loans() {
                set.prefill(&workers, table, &sorted_keys(0..45)).unwrap();
            }
        }
        let tables = borrower.whole_loans();
        assert!(tables.len() > 3);
        for table in tables {
            let (mut next, mut pieces) = (0, 0);
            while next < SLOTS {
                let (rows, left) = lender.lend_slots(table, next, 300).unwrap();
                borrower.add_borrowed(&workers, &[rows]).unwrap();
                (next, pieces) = (left, pieces + 1);
            }
            assert!(pieces > 1);
            borrower.end_whole_loan(table).unwrap();
        }
        Self { whole, lender, borrower, workers, ids: 60 + seed * 7 }
    }

    fn plan(&self, step: u64) -> LookupPlan {
        step_plan(step, self.whole.layouts().len(), self.ids, 40)
    }

    /// Lends the rows of a plan that the borrower does not have.
    fn lend(&mut self, step: u64) {
        let missing = self.borrower.missing_rows(&self.workers, &self.plan(step));
        let lent = self.lender.lend(&self.workers, &missing).unwrap();
        self.borrower.add_borrowed(&self.workers, &lent).unwrap();
    }

    fn step(&mut self, step: u64) {
        self.lend(step);
        for set in [&mut self.whole, &mut self.borrower] {
            plain_step_of(set, &self.workers, step, self.ids);
        }
    }

    fn give_back(&mut self, words: usize) {
        self.borrower.end_loan_epoch();
        while let Some(rows) = self.borrower.next_changed(words) {
            self.lender.take_lent(&self.workers, &[rows]).unwrap();
        }
    }
}

fn plain_step_of(set: &mut TableSet, workers: &Workers, step: u64, ids: u64) {
    let plan = step_plan(step, set.layouts().len(), ids, 40);
    let mut gradients = gradients(set, &plan, step);
    if step.is_multiple_of(5) {
        gradients.tables[1].values[3] = f32::NAN;
    }
    set.push(workers, &plan, &gradients, update(step, 1.0)).unwrap();
    set.sweep(workers, update(step, 1.0)).unwrap();
}

#[test]
fn a_lender_has_the_bytes_of_a_set_that_does_the_steps_itself() {
    for seed in 0..4 {
        let mut pair = Pair::new(seed);
        let mut released = 0;
        let files = Files::new();
        let mut open = false;
        let mut epoch = None;
        for step in 1..40 {
            // Rows of a later batch come early, and are not asked for again.
            pair.lend(step + 2);
            pair.step(step);
            let draw = |salt: u64, below: u64| mix64(combine(combine(seed, step), salt)) % below;
            if draw(1, 4) == 0 {
                let most = pair.borrower.lent_words()[0] * (1 + draw(2, 9) as usize);
                pair.give_back(most);
                let kept = pair.plan(step + 1);
                let missing = pair.borrower.missing_rows(&pair.workers, &kept);
                released += pair.borrower.release_borrowed(&[&kept], draw(3, 200) as usize);
                assert_eq!(pair.borrower.missing_rows(&pair.workers, &kept), missing);
            }
            let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            if draw(4, 6) == 0 {
                // A snapshot is open while other rows come back.
                pair.give_back(1000);
                if !std::mem::replace(&mut open, true) {
                    for (set, folder) in
                        [&mut pair.whole, &mut pair.lender].into_iter().zip(&folders)
                    {
                        set.begin_snapshot(&pair.workers, folder.path(), &files).unwrap();
                    }
                    pair.step(step + 100);
                    pair.give_back(1000);
                    let ends = [&mut pair.whole, &mut pair.lender]
                        .map(|set| set.finish_snapshot(&pair.workers).unwrap());
                    assert_eq!(ends[0], ends[1], "seed {seed}, step {step}");
                    open = false;
                }
            }
            if draw(5, 9) == 0 {
                pair.give_back(1000);
                if let Some(since) = epoch {
                    let deltas = [&pair.whole, &pair.lender].map(|set| {
                        let folder = tempfile::tempdir().unwrap();
                        let (workers, pace) = (&pair.workers, &mut Unthrottled);
                        set.write_delta(workers, since, &files, folder.path(), pace).unwrap()
                    });
                    assert_eq!(deltas[0], deltas[1], "seed {seed}, step {step}");
                }
                let ended = [&mut pair.whole, &mut pair.lender].map(TableSet::advance_dirty_epoch);
                assert_eq!(ended[0], ended[1]);
                epoch = Some(ended[0]);
            }
        }
        assert!(released > 50, "{released} rows were released");
        pair.give_back(usize::MAX);
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let written = [&pair.whole, &pair.lender].map(|set| {
            let folder = &folders[usize::from(std::ptr::eq(set, &pair.lender))];
            checkpoint(set, &pair.workers, folder.path())
        });
        assert!(written[0] == written[1], "seed {seed}");
    }
}

#[test]
fn rows_that_do_not_fit_are_refused_and_change_nothing() {
    let mut pair = Pair::new(1);
    pair.step(1);
    pair.give_back(usize::MAX);
    let workers = &pair.workers;
    let ask = |key| LentRows { keys: vec![key], ..LentRows::new(TableId(0)) };
    let missing = pair.borrower.missing_rows(workers, &pair.plan(900));
    let lent = pair.lender.lend(workers, &missing).unwrap();
    assert!(lent.iter().all(|of| of.words.is_empty()), "keys without a row have no words");
    let known = pair.plan(1).tables[0].keys[0];
    let row = pair.lender.lend(workers, &[ask(known)]).unwrap().remove(0);
    assert_eq!(row.words.len(), pair.lender.lent_words()[0]);
    let short = LentRows { words: row.words[1..].to_vec(), ..row.clone() };
    let other = LentRows { table: TableId(99), ..row.clone() };
    let mut back = ask(FeatureKey(u64::MAX));
    back.keys.push(FeatureKey(3));
    back.words = [row.words.clone(), row.words.clone()].concat();
    for (rows, problem) in
        [(short, "words instead of"), (other, "unknown number"), (back, "of a later slot")]
    {
        for refused in [
            pair.lender.take_lent(workers, std::slice::from_ref(&rows)),
            pair.borrower.add_borrowed(workers, &[rows]),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
    // A table with a fixed vocabulary takes no other key.
    let dense = pair.borrower.whole_loans()[0];
    let words = vec![0; pair.lender.lent_words()[dense.index()]];
    let other = LentRows { table: dense, keys: vec![FeatureKey(1)], words };
    let error = pair.lender.take_lent(workers, &[other]).unwrap_err().to_string();
    assert!(error.contains("not in the fixed vocabulary"), "{error}");
    pair.lender.own(vec![0..64; lendable().len()]).unwrap();
    let far = pair.lender.lend(workers, &[ask(FeatureKey(u64::MAX))]).unwrap_err().to_string();
    assert!(far.contains("slot 4095") && far.contains("0..64"), "{far}");
    // Padding of another process is not kept.
    let mut filled = row;
    filled.words.iter_mut().for_each(|word| *word = u32::MAX);
    pair.borrower.end_loan_epoch();
    pair.borrower.release_borrowed(&[], 0);
    pair.borrower.add_borrowed(workers, &[filled]).unwrap();
    let kept = pair.borrower.lend(workers, &[ask(known)]).unwrap().remove(0);
    assert_eq!(kept.words.last(), Some(&0));
}

#[test]
fn settings_whose_rows_stay_with_the_lender_are_refused_by_name() {
    let with = |change: &dyn Fn(&mut TableSpec)| {
        let mut spec = lendable().remove(0);
        change(&mut spec);
        let mut set = TableSet::new(vec![spec], shards(1)).unwrap();
        let refused = set.begin_borrowing().unwrap_err().to_string();
        assert!(set.lend(&workers(1), &[]).is_err() && set.take_lent(&workers(1), &[]).is_err());
        refused
    };
    for (key, change) in [
        (
            "admission",
            &(|spec: &mut TableSpec| {
                spec.admission = Admission::Count { at_least: 2 };
            }) as &dyn Fn(&mut TableSpec),
        ),
        ("eviction", &|spec| spec.eviction = Eviction::Unseen { steps: 4 }),
        ("max_rows", &|spec| spec.max_rows = Some(100)),
        ("grow", &|spec| spec.grow = Some(Growth { at: 3, from: None })),
    ] {
        let refused = with(change);
        assert!(refused.contains(&format!("`tables.wide.{key}` is set")), "{key}: {refused}");
    }
    let mut pair = Pair::new(0);
    pair.step(1);
    assert!(pair.borrower.begin_borrowing().unwrap_err().to_string().contains("empty one"));
}
