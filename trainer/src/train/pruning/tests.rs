//! Tests of runs that prune: the share of zeros in checkpoints and versions, the scores of servers,
//! and the same bytes for any threads, shards and stops.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::{Files, SystemClock, Workers};
use zillion_registry::{Cache, Registry};
use zillion_rows::layer::Unthrottled;
use zillion_scorer::Servable;

use crate::observer::{Observer, Silent};
use crate::train::tests::{Place, StopBehind};
use crate::train::{TrainOptions, train};

const MODEL: &str = "[model]\nkind = 'deepfm'\nhidden = [8, 4]\n";

fn pruning(prune: &str) -> String {
    format!(
        "{MODEL}[train]\nepochs = 2\nbatch_size = 50\nclip_norm = 5.0\n[train.prune]\n{prune}\n"
    )
}

/// An observer that keeps the notes of a run.
#[derive(Default)]
struct Notes(Vec<String>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

#[test]
fn a_run_that_prunes_has_the_same_bytes_however_it_runs() {
    let place = Place::new();
    let more = pruning("share = 0.7\nfrom = 3\nuntil = 15\nevery = 4");
    place.run("whole", &more);
    let expected = place.files("whole");
    for (threads, shards) in [(1, 1), (3, 8)] {
        let output = format!("t{threads}s{shards}");
        let mut job = place.job(&output, &more);
        job.run.shards = NonZeroUsize::new(shards).unwrap();
        train(job, TrainOptions::new(threads).unwrap(), &mut Silent).unwrap();
        assert!(place.files(&output) == expected, "{output}");
    }
    for batches in [1, 6, 7, 11, 12, 17] {
        let output = format!("stopped-{batches}");
        let options = TrainOptions::new(1).unwrap();
        let mut observer = StopBehind { batches, seen: 0, stop: options.stop.clone() };
        train(place.job(&output, &more), options, &mut observer).unwrap();
        let options = TrainOptions { resume: true, ..TrainOptions::new(2).unwrap() };
        train(place.job(&output, &more), options, &mut Silent).unwrap();
        assert!(place.files(&output) == expected, "stopped behind batch {batches}");
    }
    // Pruning has an effect, and each of its settings has one.
    place.run("plain", &format!("{MODEL}[train]\nepochs = 2\nbatch_size = 50\nclip_norm = 5.0\n"));
    let plain = place.logits("plain");
    let mut seen = vec![plain, place.logits("whole")];
    for prune in [
        "share = 0.6\nfrom = 3\nuntil = 15\nevery = 4",
        "share = 0.7\nfrom = 8\nuntil = 15\nevery = 4",
        "share = 0.7\nfrom = 3\nuntil = 24\nevery = 4",
        "share = 0.7\nfrom = 3\nuntil = 15\nevery = 5",
        "share = 0.7\nfrom = 3\nuntil = 15\nevery = 4\ntables = ['item']",
    ] {
        place.run("other", &pruning(prune));
        let logits = place.logits("other");
        assert!(!seen.contains(&logits), "{prune}");
        seen.push(logits);
        std::fs::remove_dir_all(place.path("other")).unwrap();
    }
}

#[test]
fn a_version_leaves_out_the_share_and_scores_as_training_does() {
    let place = Place::new();
    let registry = place.path("registry");
    for (rows, share) in [("f32", 0.5), ("f32", 0.9), ("bf16", 0.8), ("int8", 0.9)] {
        let name = format!("{rows}-{share}");
        let more = format!(
            "[publish]\nregistry = {registry:?}\nmodel = '{name}'\nrows = '{rows}'\n{}\
             [tables.user]\ndim = 16\n[tables.item]\ndim = 16\n",
            pruning(&format!("share = {share}\nuntil = 8\nevery = 3"))
        );
        let mut notes = Notes::default();
        train(place.job(&name, &more), TrainOptions::new(2).unwrap(), &mut notes).unwrap();
        let noted = |words: &str| notes.0.iter().any(|note| note.contains(words));
        assert!(noted("weights of rows are zero ("), "{:?}", notes.0);
        assert!(noted("before the pruning of this epoch"), "{:?}", notes.0);

        let clock = Arc::new(SystemClock::new());
        let registry = Registry::open(registry.to_str().unwrap(), Files::new(), clock).unwrap();
        let model = registry.model(&name).unwrap();
        let newest = model.latest().unwrap().unwrap();
        let listed = model.layer(&model.version(newest).unwrap()).unwrap();
        let sparsity = listed.sparsity().unwrap();
        // A delta has only a part of the rows.
        assert!(
            sparsity.share() >= share - 0.1 && sparsity.bytes < sparsity.whole_bytes,
            "{sparsity}"
        );
        for has_records in [false, true] {
            let folder = place.path(&format!("cache-{name}-{has_records}"));
            let mut cache = Cache::open(&folder, &name, Files::new()).unwrap();
            cache.set_row_records(has_records);
            let workers = Arc::new(Workers::new(NonZeroUsize::MIN).unwrap());
            // A server replays the parity rows, whose scores training has computed.
            let pace = &mut Unthrottled;
            Servable::load(&model, newest, None, &mut cache, &workers, pace).unwrap();
        }
    }
}
