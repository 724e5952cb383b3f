//! Tests of gradients that are rounded to bf16 before they are pushed (`train.wire`).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::modes::{BATCHES, geo, geo_place, mode, numbers, place, refs};
use super::proxy::{Act, FrameProxy, Seen, Way, op};
use super::runs::{
    addresses, outcome, place_with_everything, replaced, small_job, train_alone, train_over,
};
use super::servers::ServerProcess;
use crate::harness::Workplace;

const BF16: [&str; 2] = ["--set", "train.wire=bf16"];

#[test]
fn rounded_gradients_give_the_bytes_of_one_process() {
    let place = place_with_everything();
    let accumulate = ["--set", "train.accumulate=2"];
    train_alone(&place, "plain", &accumulate);
    train_alone(&place, "alone", &[accumulate, BF16].concat());
    assert_ne!(outcome(&place, "alone"), outcome(&place, "plain"), "nothing is rounded");
    let servers = ServerProcess::start_group(&place.path(""), 3, &[]);
    let at = addresses(&servers);
    for count in [1, 2, 3] {
        let output = format!("over-{count}");
        train_over(&place, &output, &at[..count], 2, &BF16);
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
    // A run cannot change its wire.
    let more = [&accumulate[..], &["--resume"]].concat();
    let ended = place.train("alone", &more).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("train.wire"), "{said}");
}

#[test]
fn gradients_are_rounded_in_every_mode() {
    let place = place();
    train_alone(&place, "alone", &BF16);
    let servers = ServerProcess::start_group(&place.path(""), 3, &[]);
    let at = addresses(&servers);
    for name in ["hybrid", "async"] {
        // Nothing is asynchronous for one trainer whose pulls are strict.
        train_over(&place, name, &at, 1, &[&refs(&mode(name, 0))[..], &BF16].concat());
        assert_eq!(outcome(&place, name), outcome(&place, "alone"), "{name}");
        let output = format!("{name}-2");
        train_over(&place, &output, &at, 2, &[&refs(&mode(name, 2))[..], &BF16].concat());
        for server in &servers {
            assert_eq!(numbers(&server.status(), "applied_steps"), [BATCHES / 2; 2], "{name}");
        }
    }
    let place = geo_place(2);
    train_alone(&place, "alone", &BF16);
    train_alone(&place, "plain", &[]);
    assert_ne!(outcome(&place, "alone"), outcome(&place, "plain"), "nothing is rounded");
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let at = addresses(&servers);
    train_over(&place, "geo", &at, 1, &[&refs(&geo(1))[..], &BF16].concat());
    assert_eq!(outcome(&place, "geo"), outcome(&place, "alone"));
}

/// The numbers of the operations of a step.
const STEP: RangeInclusive<u16> = 20..=31;

/// Trains over one server. Returns the bytes of all questions and of the pulled rows in each step.
fn bytes_of_a_step(place: &Workplace, output: &str, more: &[&str]) -> [usize; 2] {
    let server = ServerProcess::start(&place.path(""), &[]);
    let counted: Arc<[AtomicUsize; 2]> = Arc::default();
    let count = counted.clone();
    let proxy = FrameProxy::start(&server.address, move |seen: &Seen| {
        // The answers of a norm are sums of groups of slots, and depend on no row.
        if STEP.contains(&seen.op) && (seen.way == Way::Question || seen.op == op::PULL) {
            count[usize::from(seen.way == Way::Answer)].fetch_add(seen.bytes, Ordering::SeqCst);
        }
        Act::Pass
    });
    let report = &train_over(place, output, std::slice::from_ref(&proxy.address), 1, more)[0];
    let steps = report["steps"].as_u64().expect("a number of steps") as usize;
    let bytes = [0, 1].map(|way| counted[way].load(Ordering::SeqCst) / steps);
    eprintln!("{output}: {} bytes of questions and {} of rows in a step", bytes[0], bytes[1]);
    bytes
}

#[test]
fn gradients_and_rows_of_bf16_take_fewer_bytes() {
    let place = Workplace::new();
    let job = |dtype: &str| {
        let table = format!("dim = 16\ndtype = '{dtype}'\n");
        place.write("job.toml", &replaced(&small_job(), &[("dim = 4\n", &table)]));
    };
    job("f32");
    let plain = bytes_of_a_step(&place, "plain", &[]);
    let rounded = bytes_of_a_step(&place, "rounded", &BF16);
    job("bf16");
    let narrow = bytes_of_a_step(&place, "narrow", &[]);
    // Each of the two ways depends on its own setting.
    let two_thirds = plain.map(|bytes| 2 * bytes / 3);
    assert!(rounded[0] < two_thirds[0] && rounded[1] > two_thirds[1], "{rounded:?}, {plain:?}");
    assert!(narrow[1] < two_thirds[1] && narrow[0] > two_thirds[0], "{narrow:?}, {plain:?}");
}
