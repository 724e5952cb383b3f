//! Tests of a run that repeats its log: each state finds its version, and no pointer goes back.

use super::*;

/// The number of versions behind the state from which a run begins, more than a publisher looks at
/// otherwise.
const MANY: u64 = 150;

impl Run {
    /// Makes the run one over streams.
    fn of_streams(more: &str) -> Self {
        let mut run = Self::new(true, more);
        run.publisher.repeats_versions = true;
        run
    }

    /// Sets the run back to its beginning, as a kill before the first checkpoint does, or to the
    /// state after `step` steps, whose last version was `newest`.
    fn restart(&mut self, step: u64, newest: Option<Link>) {
        self.publisher = open(&self.job, self.folder.path(), &self.clock, &Files::new(), false);
        self.publisher.repeats_versions = true;
        self.publisher.newest = newest;
        self.table.rows.clear();
        (self.step, self.table.epoch) = (0, 1);
        (0..USERS).for_each(|user| self.change(user));
        while self.step < step {
            self.advance();
        }
    }

    /// Does a step that changes one row.
    fn advance(&mut self) {
        self.step += 1;
        self.change(self.step % USERS);
    }

    /// Does a step that is repeated, and publishes its state unless a version is found. Returns the
    /// number of the version that was found, 0 if the state was passed over, or `None` if the state
    /// was published.
    fn repeat(&mut self) -> Option<u64> {
        self.advance();
        match self.publisher.find_repeated(self.step, &mut self.table, &self.params).unwrap() {
            Repeated::There(version) => {
                let taken = self.publisher.take_repeated(version, &mut self.table).unwrap();
                assert!(taken.was_there && taken.version.origin.step == self.step);
                Some(taken.version.version.0)
            }
            Repeated::Passed => Some(0),
            Repeated::Missing => {
                assert!(!self.publish_again(Wish::default()).unwrap().was_there);
                None
            }
        }
    }

    /// Returns the numbers of the versions that the pointer named, the last one first.
    fn pointed(&self) -> Vec<u64> {
        let moves = self.model().moves(STABLE, None, 1000).unwrap();
        moves.iter().map(|entry| entry.to.version.0).collect()
    }

    fn link(&self, version: u64) -> Option<Link> {
        Some(self.model().version(VersionId(version)).unwrap().link())
    }
}

#[test]
fn many_versions_behind_a_checkpoint_are_found_again() {
    for checkpoint in [0, 40, MANY - 3] {
        let mut run = Run::of_streams("");
        for _ in 0..MANY {
            run.publish().unwrap();
        }
        let (moves, newest) = (run.pointed(), (checkpoint > 0).then(|| run.link(checkpoint)));
        run.restart(checkpoint, newest.flatten());
        for step in checkpoint + 1..=MANY {
            assert_eq!(run.repeat(), Some(step), "from {checkpoint}");
        }
        assert_eq!(run.pointed(), moves, "from {checkpoint}");
        // The next state is published, as a delta on the last version.
        assert_eq!(run.repeat(), None);
        let next = run.model().version(VersionId(MANY + 1)).unwrap();
        assert_eq!(next.parent.map(|parent| parent.version), Some(VersionId(MANY)));
        assert_eq!(run.pointed()[0], MANY + 1);
    }
}

#[test]
fn versions_that_a_rewind_has_left_out_are_passed() {
    let mut run = Run::of_streams("");
    for _ in 0..MANY {
        run.publish().unwrap();
    }
    // The gate leaves out the states behind step 45, and the run goes on from step 40.
    let bad: Vec<VersionId> = (46..=MANY).map(VersionId).collect();
    crate::quarantine_versions(run.model(), &bad, "test", "bad").unwrap();
    assert_eq!(run.pointed()[0], 45);
    run.restart(40, run.link(40));
    assert_eq!((0..5).map(|_| run.repeat().unwrap()).collect::<Vec<_>>(), [41, 42, 43, 44, 45]);
    assert_eq!(run.pointed()[0], 45);
    // A checkpoint is written here. Other batches follow, whose states have the same steps.
    let newest = run.publisher.newest().cloned();
    assert_eq!(newest, run.link(45));
    let params = run.params.clone();
    add(&mut run.params, 1.0);
    let others = run.params.clone();
    for number in 1..=80 {
        let published = run.publish().unwrap();
        assert_eq!((published.version.version.0, published.was_there), (MANY + number, false));
    }
    let moves = run.pointed();
    for (checkpoint, newest) in [(45, newest), (40, run.link(40))] {
        run.params = params.clone();
        run.restart(checkpoint, newest);
        let before: Vec<_> = (checkpoint..45).map(|_| run.repeat().unwrap()).collect();
        assert_eq!(before, (checkpoint + 1..=45).collect::<Vec<_>>());
        run.params = others.clone();
        for number in 1..=80 {
            assert_eq!(run.repeat(), Some(MANY + number), "from {checkpoint}");
        }
        assert_eq!(run.pointed(), moves);
    }
}

/// Publishes 16 versions on several bases, and returns the numbers of the bases.
fn publish_bases(run: &mut Run) -> Vec<u64> {
    let versions: Vec<_> = (0..16).map(|_| run.publish().unwrap().version).collect();
    let bases = versions.iter().filter(|version| version.is_base());
    let bases: Vec<u64> = bases.map(|version| version.version.0).collect();
    assert!(bases.len() >= 3 && bases[1] > 3, "{bases:?}");
    bases
}

#[test]
fn a_removed_version_is_not_published_again_behind_later_ones() {
    let mut run = Run::of_streams("max_deltas = 4");
    let bases = publish_bases(&mut run);
    // A collection has removed the versions before the second base.
    let removed = 2..bases[1];
    removed.clone().for_each(|version| std::fs::remove_file(run.manifest(version)).unwrap());
    let moves = run.pointed();
    run.restart(0, None);
    let found: Vec<_> = (0..16).map(|_| run.repeat().unwrap()).collect();
    let expected = (1..=16).map(|number| if removed.contains(&number) { 0 } else { number });
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert_eq!(run.pointed(), moves);
    // If a rewind has left out the later versions, the state is the newest one.
    let later: Vec<VersionId> = (bases[1]..=16).map(VersionId).collect();
    crate::quarantine_versions(run.model(), &later, "test", "bad").unwrap();
    run.restart(1, run.link(1));
    assert_eq!(run.repeat(), None);
    assert_eq!(run.pointed()[0], 17);
}

#[test]
fn versions_that_were_collected_do_not_keep_others_from_quarantine() {
    let mut run = Run::of_streams("max_deltas = 4");
    let bases = publish_bases(&mut run);
    // The versions before the second base are gone, the first bad one with them.
    let (second, third) = (bases[1], bases[2]);
    for version in 2..second {
        std::fs::remove_file(run.manifest(version)).unwrap();
    }
    std::fs::remove_file(run.manifest(third - 1)).unwrap();
    let bad: Vec<VersionId> = (2..=16).map(VersionId).collect();
    let placed = crate::quarantine_versions(run.model(), &bad, "test", "bad").unwrap();
    let roots = bases[1..].iter().copied().map(VersionId).collect::<Vec<_>>();
    assert_eq!(placed, roots);
    assert_eq!(run.pointed()[0], 1);
}

#[test]
fn a_run_that_has_had_a_pointer_takes_it_over_no_second_time() {
    let mut run = Run::of_streams("");
    run.job.publish.as_mut().unwrap().take_over = true;
    run.publisher.config.take_over = true;
    let other = run.folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let mut second = open(&run.job, &other, &run.clock, &Files::new(), false);
    (second.repeats_versions, second.run) = (true, RunId("other".to_owned()));
    run.publish().unwrap();
    // The second run is new, so it takes the pointer over, and publishes more than is looked at.
    std::mem::swap(&mut run.publisher, &mut second);
    for _ in 0..70 {
        run.publish().unwrap();
    }
    let moves = run.pointed();
    std::mem::swap(&mut run.publisher, &mut second);
    let said = run.publish().unwrap_err().to_string();
    assert!(said.contains("so two runs publish to it"), "{said}");
    // A start changes nothing.
    run.restart(0, None);
    let said = run.publisher.check_pointer().unwrap_err().to_string();
    assert!(said.contains("so two runs publish to it"), "{said}");
    assert_eq!(run.pointed(), moves);
    // An operator decides which run stays.
    run.model().promote(STABLE, VersionId(1), MoveKind::Promote, "test", None).unwrap();
    run.publisher.check_pointer().unwrap();
}
