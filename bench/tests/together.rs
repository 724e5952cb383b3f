//! A test that requests of one connection are scored in one pass, with the same bits as alone.

mod server;

use server::{Http2, Server};
use zillion_bench::example::{MODEL, requests};
use zillion_serving::Selector;

/// The rows of the table.
const ROWS: u64 = 1000;

/// Returns the probabilities at the end of an answer.
fn probabilities(answer: &[u8], rows: usize) -> Vec<u32> {
    let floats = &answer[answer.len() - 4 * rows..];
    floats.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes"))).collect()
}

#[test]
fn requests_scored_together_have_the_bits_of_single_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), ROWS);
    let version = server.domain.host(MODEL).expect("the model").resolve(&Selector::Default);
    let servable = version.expect("a version").servable;
    // Requests of different sizes share a pass.
    let mut examples = Vec::new();
    for candidates in [1, 2, 5] {
        let some = requests(ROWS, candidates, 20).expect("requests");
        examples.extend(some.into_iter().map(|example| (candidates, example)));
    }
    examples.sort_by_key(|(_, example)| example.message.as_ptr());
    let expected: Vec<Vec<u32>> = examples
        .iter()
        .map(|(rows, example)| {
            let scores = servable.score(*rows, &example.columns).expect("scores");
            let value = |&logit: &f32| ((1.0 / (1.0 + (-f64::from(logit)).exp())) as f32).to_bits();
            scores.logits[0].iter().map(value).collect()
        })
        .collect();
    let mut connection = Http2::connect(server.address);
    let (mut answered, mut rounds) = (0, 0);
    // The first requests of a size go to the pool.
    while server.counter("zillion_serving_scored_together_total") < 100 {
        let messages = examples.iter().map(|(_, example)| &example.message[..]);
        connection.call(messages, |at, answer| {
            assert_eq!(probabilities(answer, examples[at].0), expected[at], "request {at}");
            answered += 1;
        });
        rounds += 1;
        assert!(rounds < 1000, "no requests are scored together");
    }
    assert_eq!(answered, rounds * examples.len());
    let inline = server.counter("zillion_serving_scored_inline_total");
    assert!(inline >= server.counter("zillion_serving_scored_together_total"));
    // A run of the model is counted once, whatever the number of its requests.
    let totals = server.domain.host(MODEL).expect("the model").open();
    let totals = totals.statistics.values().next().expect("a version").totals();
    assert_eq!(totals.success.count, answered as u64);
    assert!(totals.execution_count < totals.success.count, "{totals:?}");
    assert_eq!(totals.inference_count, 160 * rounds as u64);
}
