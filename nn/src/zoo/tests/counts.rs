//! Tests of parameter counts. They are compared with the BARS leaderboard of Frappe (Zhu et al.,
//! SIGIR 2022) and with the models of the benchmark in the shape of Criteo.
//!
//! A published count includes dense parameters and table parameters. Frappe has 10 fields and 5,382
//! ids. The published tables have 5,389 rows, of which 7 are padding that no id uses. (LR has 5,390
//! parameters: 5,389 weights and one bias.) With vectors of 10 floats, the tables have 53,890
//! parameters. With the linear weight in addition, they have 59,279 parameters. All other
//! parameters are dense parameters, and our models must have exactly this number:
//!
//! * the MLP 400-400-400 over 100 inputs: 40,400 + 160,400 + 160,400 and 800 for each batch norm,
//!   which are 363,600, and 401 for its output;
//! * DeepFM 423,280 = 59,279 + 364,001: no bias in the wide part. (FuxiCTR later added a bias to
//!   the FM in DeepFM, which the published run did not have. It is `bias = true` here.)
//! * DCN 418,591 = 53,890 + 363,600 + 3 cross layers of 100 + 100 + an output over 100 + 400 and
//!   its bias;
//! * DCNv2 458,391 = 53,890 + 363,600 + 4 cross layers of 100·100 + 100 + the same output.
//!
//! The leaderboard's DNN has 781,892 parameters, which are 53,890 and exactly two times 364,001. So
//! this run seems to have had two MLPs of the same size, but FuxiCTR's DNN has only one. Our DNN
//! also has one MLP, and 417,891 parameters in all. DLRM without numeric features and with the
//! interaction "cat" is the same model, and has the same number of parameters.

use super::super::{Needs, build};
use super::{inputs, spec};
use crate::graph::builder::Mode;

/// The number of rows of the published tables.
const PUBLISHED_ROWS: usize = 5_389;

const BARS_MLP: &str = "hidden = [400, 400, 400]\nbatch_norm = true\ndropout = 0.2";

fn dense(text: &str, fields: usize, dim: usize, numeric: usize) -> usize {
    let graph = build(&spec(text), &inputs(fields, dim, numeric), Mode::Train).unwrap();
    graph.params.iter().filter(|p| p.trainable).map(|p| p.rows * p.cols).sum()
}

fn frappe(text: &str) -> usize {
    let Needs { vector, linear } = spec(text).needs();
    let row = 10 * usize::from(vector) + usize::from(linear);
    PUBLISHED_ROWS * row + dense(text, 10, 10, 0)
}

#[test]
fn match_the_leaderboard() {
    let mlp = BARS_MLP;
    for (text, published) in [
        ("kind = 'lr'".to_owned(), 5_390),
        ("kind = 'fm'".to_owned(), 59_280),
        (format!("kind = 'wide_deep'\n{mlp}"), 423_280),
        (format!("kind = 'deepfm'\n{mlp}"), 423_280),
        (format!("kind = 'dcn'\ncross_layers = 3\n{mlp}"), 418_591),
        ("kind = 'dcn'\ncross_layers = 6\nhidden = []".to_owned(), 55_191),
        (format!("kind = 'dcnv2'\ncross_layers = 4\n{mlp}"), 458_391),
        ("kind = 'dcnv2'\ncross_layers = 4\nhidden = []".to_owned(), 94_391),
        (format!("kind = 'dlrm'\ninteraction = 'cat'\n{mlp}"), 417_891),
    ] {
        assert_eq!(frappe(&text), published, "{text}");
    }
    // The published DNN has two of our MLPs over one table.
    let dnn = format!("kind = 'dnn'\n{mlp}");
    assert_eq!(frappe(&dnn), 417_891);
    assert_eq!(frappe(&dnn) + dense(&dnn, 10, 10, 0), 781_892);
}

#[test]
fn match_the_criteo_shaped_benchmark() {
    // 26 fields of 16 floats and 13 numbers are the inputs of the deep part.
    let inputs = 26 * 16 + 13;
    let linear = |from: usize, to: usize| from * to + to;

    let deepfm = "kind = 'deepfm'\nhidden = [400, 400, 400]\nbias = true";
    let mlp = linear(inputs, 400) + 2 * linear(400, 400) + linear(400, 1);
    assert_eq!(dense(deepfm, 26, 16, 13), mlp + linear(13, 1));

    let dcnv2 = "kind = 'dcnv2'\ncross_layers = 3\nhidden = [512, 256, 128]";
    let mlp = linear(inputs, 512) + linear(512, 256) + linear(256, 128);
    let crosses = 3 * linear(inputs, inputs);
    assert_eq!(dense(dcnv2, 26, 16, 13), mlp + crosses + linear(inputs + 128, 1));

    let dlrm = "kind = 'dlrm'\nbottom = [512, 256, 16]\nhidden = [512, 256]";
    let bottom = linear(13, 512) + linear(512, 256) + linear(256, 16);
    let top = linear(16 + 27 * 26 / 2, 512) + linear(512, 256) + linear(256, 1);
    assert_eq!(dense(dlrm, 26, 16, 13), bottom + top);
}

#[test]
fn din_is_an_activation_unit_a_pair_and_an_mlp() {
    let linear = |from: usize, to: usize| from * to + to;
    let pairs = "attention = [{ query = 'c0', history = 'c1' }, { query = 'c2', history = 'c1' }]";
    // The unit reads query, item, difference and product. The history occurs twice, once for each
    // query.
    let unit = |dim: usize| linear(4 * dim, 80) + linear(80, 40) + linear(40, 1);
    let mlp = linear(6 * 16 + 3, 200) + linear(200, 80) + linear(80, 1);
    assert_eq!(dense(&format!("kind = 'din'\n{pairs}"), 5, 16, 3), 2 * unit(16) + mlp);
    // Dice learns one number per unit.
    let text = format!("kind = 'din'\n{pairs}\nactivation = 'dice'\nattention_activation = 'dice'");
    assert_eq!(dense(&text, 5, 16, 3), 2 * (unit(16) + 120) + mlp + 280);
    let text = format!("kind = 'din'\n{pairs}\nwide = true");
    assert_eq!(dense(&text, 5, 16, 3), 2 * unit(16) + mlp + 3);
}

#[test]
fn low_rank_crosses_are_small() {
    let text =
        "kind = 'dcnv2'\ncross_layers = 2\nlow_rank = 7\nhidden = [5]\nstructure = 'stacked'";
    let cross = 40 * 7 + 7 * 40 + 40;
    assert_eq!(dense(text, 10, 4, 0), 2 * cross + (40 * 5 + 5) + (5 + 1));
}
