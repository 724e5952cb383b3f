//! Random sequences of inputs: the joiner and the model must agree after each input.

use proptest::prelude::*;

use super::model::Model;
use super::*;

const PARTITIONS: u32 = 3;

/// An input with a time relative to the inputs before it.
#[derive(Clone, Debug)]
struct Draft {
    kind: u8,
    partition: u32,
    key: u8,
    feedback: u16,
    shift: i64,
    row_bytes: usize,
    wrong_time: u8,
    checkpoint: u8,
}

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    let draft = (
        (0..20u8, 0..PARTITIONS, any::<u8>(), 0..3u16),
        (-160..60i64, 0..3_000usize, 0..60u8, 0..40u8),
    );
    let draft = draft.prop_map(|((kind, partition, key, feedback), rest)| {
        let (shift, row_bytes, wrong_time, checkpoint) = rest;
        Draft { kind, partition, key, feedback, shift, row_bytes, wrong_time, checkpoint }
    });
    prop::collection::vec(draft, 1..250)
}

/// Makes inputs of drafts. The times rise by 4 ms an input, with the shift of each input.
fn inputs(drafts: &[Draft]) -> Vec<Input> {
    let input = |(number, draft): (usize, &Draft)| {
        let usual = 1_000 + number as i64 * 4 + draft.shift;
        let time = match draft.wrong_time {
            0 => None,
            1 => Some(-usual),
            2 => Some(usual + YEAR),
            3 => Some(usual + 2_000),
            _ => Some(usual),
        };
        let partition = draft.partition;
        // Keys come back after a while, so that a key is used again after its row has left.
        let key = format!("{}", (number / 8) as u8 ^ (draft.key % 8)).into_bytes();
        match draft.kind {
            0 => Input::Idle(partition),
            1 => Input::Back(partition),
            2..11 => {
                let row = vec![number as u8; draft.row_bytes];
                let weight = 1.0 + f32::from(draft.key % 3);
                Input::Impression { partition, key, time, row, weight }
            }
            _ => {
                let value = f32::from(draft.key);
                Input::Feedback { partition, key, time, kind: draft.feedback, value }
            }
        }
    };
    drafts.iter().enumerate().map(input).chain([Input::End]).collect()
}

/// Returns early feedback of equal times, which is more than the bound allows, and impressions for
/// a part of it.
fn early_beyond_the_bound() -> Vec<Input> {
    let key = |number: u16| format!("early {number}");
    let early = (0..1_300).map(|number| feedback(&key(number), 1_000, 1));
    let impressions = (0..1_300).step_by(13).map(|number| impression(&key(number), 1_000));
    early.chain(impressions).collect()
}

fn random_settings() -> impl Strategy<Value = Settings> {
    let emit = prop_oneof![
        Just(Emit::Window),
        Just(Emit::Now(Late::Correct)),
        Just(Emit::Now(Late::Drop)),
    ];
    let correction =
        prop_oneof![Just(SamplingCorrection::Weight), Just(SamplingCorrection::LogOdds)];
    let keep = prop_oneof![Just(1.0), Just(0.4)];
    let max_rows = prop_oneof![Just(1_000_000), 1..20u64];
    (emit, keep, correction, max_rows, 0..200u64).prop_map(
        |(emit, keep, correction, max_rows, wait)| {
            let mut settings = settings(emit);
            settings.negatives = Negatives { keep, correction };
            settings.bounds.max_rows = max_rows;
            settings.wait = wait;
            settings
        },
    )
}

/// Gives an input to a joiner. With `checkpoint`, a checkpoint is written between two rows or after
/// the last row, and the joiner is replaced by one that is restored from it.
fn run(
    workplace: &mut Workplace,
    input: &Input,
    checkpoint: Option<u8>,
) -> (Option<Outcome>, Vec<Row>) {
    let outcome = put(&mut workplace.joiner, input).unwrap();
    let mut rows = Vec::new();
    loop {
        // The first row of an input may be one that only the memory has.
        let is_time = !rows.is_empty() && checkpoint == Some(rows.len() as u8 % 4);
        if is_time {
            let checkpoint = workplace.checkpoint();
            workplace.restore(&checkpoint);
            std::fs::remove_dir_all(checkpoint).unwrap();
        }
        let Some(row) = workplace.joiner.next_row().unwrap() else { break };
        rows.push(row.into());
    }
    if checkpoint == Some(0) {
        let saved = workplace.checkpoint();
        workplace.restore(&saved);
        std::fs::remove_dir_all(saved).unwrap();
    }
    (outcome, rows)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_joiner_is_its_model(drafts in drafts(), settings in random_settings()) {
        let mut workplace = Workplace::new(settings, PARTITIONS);
        let mut restored = Workplace::new(settings, PARTITIONS);
        let mut model = Model::new(settings, PARTITIONS);
        let checkpoints = drafts.iter().map(|draft| draft.checkpoint).chain([0]);
        for (input, checkpoint) in inputs(&drafts).iter().zip(checkpoints) {
            let expected = model.push(input);
            let plain = run(&mut workplace, input, None);
            prop_assert_eq!(&plain, &expected, "{:?}", input);
            let checkpoint = (checkpoint < 4).then_some(checkpoint);
            let with_restores = run(&mut restored, input, checkpoint);
            prop_assert_eq!(&with_restores, &expected, "{:?}", input);
            prop_assert_eq!(workplace.counters(), model.counters);
            prop_assert_eq!(restored.counters(), model.counters);
        }
        let extent = workplace.joiner.extent();
        prop_assert_eq!((extent.rows, extent.row_bytes, extent.disk_bytes), (0, 0, 0));
        prop_assert_eq!((extent.joined_feedback, extent.early_feedback), (0, 0));
    }

    /// Other keys have other hashes, and so another order in the index and in the trees.
    #[test]
    fn no_order_follows_from_hashes(
        drafts in drafts(),
        salts in prop::array::uniform2(0..999u16),
        is_full in 0..4u8,
    ) {
        let settings = settings(Emit::Window);
        let [one, other] = salts.map(|salt| {
            let mut workplace = Workplace::new(settings, PARTITIONS);
            let mut inputs = inputs(&drafts);
            if is_full == 0 {
                inputs.splice(0..0, early_beyond_the_bound());
            }
            for input in &mut inputs {
                if let Input::Impression { key, .. } | Input::Feedback { key, .. } = input {
                    key.extend_from_slice(format!("/{salt}").as_bytes());
                }
            }
            let (begin, rest) = inputs.split_at(inputs.len().min(600));
            let mut rows = workplace.push_all(begin);
            // A checkpoint keeps the order of arrival.
            if salt == salts[1] {
                let checkpoint = workplace.checkpoint();
                workplace.restore(&checkpoint);
            }
            rows.extend(workplace.push_all(rest));
            assert_eq!(workplace.counters().evicted_feedback > 100, is_full == 0);
            (rows, workplace.counters())
        });
        prop_assert_eq!(one, other);
    }
}
