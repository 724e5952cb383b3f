//! Tests of the precision `bf16` on processors: every model trains, with the same bytes for any
//! number of threads and across interruptions. A machine without the instructions refuses the job.

use zillion_device::matmul::bf16::Instructions;

use super::precision::{Losses, WIDE, settings};
use super::*;

impl Place {
    /// Trains on processors and returns the loss of the last epoch and the files of the newest
    /// checkpoint.
    fn train_on(
        &self,
        output: &str,
        settings: &str,
        threads: usize,
    ) -> (f64, BTreeMap<PathBuf, Vec<u8>>) {
        let mut losses = Losses::default();
        let job = self.job(output, settings, DeviceChoice::Cpu).unwrap();
        train(job, TrainOptions::new(threads).unwrap(), &mut losses).unwrap();
        (losses.loss, self.files(output))
    }

    /// Trains a run that is interrupted after each of some batches, with changing numbers of
    /// threads.
    fn train_on_in_parts(&self, output: &str, settings: &str, seed: u64) {
        for part in 0.. {
            let mut options = TrainOptions::new(1 + (part % 3) as usize).unwrap();
            options.resume = part > 0;
            let batches = 1 + mix64(combine(seed, part)) % 3;
            let mut observer = StopBehind { batches, seen: 0, stop: options.stop.clone() };
            let job = self.job(output, settings, DeviceChoice::Cpu).unwrap();
            if !train(job, options, &mut observer).unwrap().interrupted {
                assert!(part > 1, "{output} was not interrupted");
                break;
            }
        }
    }
}

fn dense(files: &BTreeMap<PathBuf, Vec<u8>>) -> &[u8] {
    let found = files.iter().find(|(name, _)| name.ends_with("dense.safetensors"));
    found.expect("a checkpoint has dense parameters").1
}

#[test]
fn every_model_trains_in_bf16_with_the_same_bytes() {
    let place = Place::new();
    let Some(set) = Instructions::detect() else {
        let settings = settings(WIDE[4], "bf16");
        let error = place.train("none", &settings, DeviceChoice::Cpu).unwrap_err().to_string();
        let words = ["`train.precision`", "bf16", "AMX-BF16", "`run.device` is \"cpu\""];
        return assert!(words.iter().all(|words| error.contains(words)), "{error}");
    };
    for (number, model) in WIDE.iter().enumerate() {
        let name = |name: &str| format!("{number}-{name}");
        let (exact, of_f32) = place.train_on(&name("f32"), &settings(model, "f32"), 2);
        let settings = settings(model, "bf16");
        let (loss, first) = place.train_on(&name("one"), &settings, 1);
        let (_, second) = place.train_on(&name("two"), &settings, 2);
        assert!(first == second, "{model}: one thread and two");
        assert!((loss - exact).abs() <= 2e-2 * exact, "{model}: bf16 {loss}, f32 {exact}");
        let has_products = !model.contains("'lr'") && !model.contains("'fm'");
        assert_eq!(dense(&first) != dense(&of_f32), has_products, "{model}");
        let products = place.manifest(&name("one")).products.unwrap();
        assert_eq!(products.instructions.as_deref(), Some(set.name()));
        assert!(products.algorithms.is_empty() && products.gpu.is_empty());
        place.train_on_in_parts(&name("parts"), &settings, number as u64);
        assert!(place.files(&name("parts")) == first, "{model}: interrupted");
    }
}

#[test]
fn a_run_says_when_processors_give_its_products_other_bits() {
    let Some(set) = Instructions::detect() else { return };
    let place = Place::new();
    let settings = settings(WIDE[4], "bf16");
    let run = |output: &str, is_resumed: bool| -> Vec<String> {
        let mut losses = Losses::default();
        let mut options = TrainOptions::new(1).unwrap();
        options.resume = is_resumed;
        let job = place.job(output, &settings, DeviceChoice::Cpu).unwrap();
        if is_resumed {
            train(job, options, &mut losses).unwrap();
        } else {
            let mut stop = StopBehind { batches: 2, seen: 0, stop: options.stop.clone() };
            assert!(train(job, options, &mut stop).unwrap().interrupted);
        }
        losses.notes.retain(|line| line.contains("bits"));
        losses.notes
    };
    run("same", false);
    assert_eq!(run("same", true), [""; 0]);
    run("other", false);
    place.change_products("other", |products| products.instructions = Some("some-set".to_owned()));
    let lines = run("other", true);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let words = ["processors with some-set", &format!("this is processors with {set}")];
    assert!(words.iter().all(|words| lines[0].contains(words)), "{lines:?}");
    // The checkpoints after it are of this machine.
    assert_eq!(place.manifest("other").products, place.manifest("same").products);
    let (_, device) = place.train_noted("noted", &settings, DeviceChoice::Cpu).unwrap();
    assert!(device.ends_with(&format!("products in bf16 by {set}")), "{device}");
}
