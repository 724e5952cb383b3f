//! Tests of model sections: the keys that are read, and the keys that are refused.

use super::*;
use crate::zoo::{Activation, MlpKeys, Structure};

fn read(text: &str) -> Result<ModelSpec, String> {
    let value = Value::Table(toml::from_str(text).unwrap());
    ModelSpec::from_section(&value, "model").map_err(|error| error.to_string())
}

#[test]
fn every_kind_is_read_with_its_defaults() {
    let single = ["lr", "fm", "dnn", "wide_deep", "deepfm", "dcn", "dcnv2", "dlrm", "din"];
    for kind in single.into_iter().chain(["shared_bottom", "mmoe", "esmm", "two_tower"]) {
        let spec = read(&format!("kind = '{kind}'")).unwrap();
        assert_eq!(spec.kind(), kind);
        let again = toml::to_string(&spec).unwrap();
        assert_eq!(read(&again).unwrap(), spec, "{again}");
    }
}

#[test]
fn keys_are_read() {
    let text = "kind = 'dcnv2'\nhidden = [512, 256]\ncross_layers = 4\nlow_rank = 8\n\
                structure = 'stacked'\nactivation = 'leaky_relu'\nbatch_norm = true\n\
                dropout = 0.5\nl2 = 1";
    let expected = Dcnv2Spec {
        cross_layers: 4,
        low_rank: Some(8),
        structure: Structure::Stacked,
        hidden: vec![512, 256],
        mlp: MlpKeys { activation: Activation::LeakyRelu, batch_norm: true, dropout: 0.5 },
        l2: 1.0,
    };
    assert_eq!(read(text).unwrap(), ModelSpec::Dcnv2(expected));
}

#[test]
fn keys_of_other_kinds_are_refused_by_name() {
    for (text, message) in [
        ("kind = 'deepfm'\ncross_layers = 3", "unknown key `model.cross_layers`"),
        ("kind = 'lr'\nhidden = [4]", "unknown key `model.hidden`"),
        ("kind = 'dnn'\nhiden = [4]", "did you mean `hidden`?"),
        ("kind = 'dcn'\nlow_rank = 4", "unknown key `model.low_rank`"),
        ("kind = 'deepfn'", "did you mean `deepfm`?"),
        ("hidden = [4]", "missing key `model.kind`"),
        ("kind = 'dnn'\ndropout = 1", "below 1"),
        ("kind = 'dnn'\nhidden = [4, 0]", "at least 1 unit"),
        ("kind = 'dnn'\nl2 = -1", "0 or above"),
        ("kind = 'dcn'\ncross_layers = 0", "at least 1"),
        ("kind = 'mmoe'\nexperts = 0", "at least 1"),
        ("kind = 'two_tower'\ntemperature = 0", "must be above 0"),
        ("kind = 'two_tower'\nusers = ['a']", "did you mean `user`?"),
        ("kind = 'shared_botom'", "did you mean `shared_bottom`?"),
        ("kind = 'dnn'\nactivation = 'rely'", "did you mean `relu`?"),
        ("kind = 'din'\nattention = [{ query = 'a', histories = 'b' }]", "did you mean `history`?"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(message), "{text}: {error}");
    }
}

#[test]
fn needs_name_the_segments() {
    let needs = |kind: &str| {
        let Needs { vector, linear } = read(&format!("kind = '{kind}'")).unwrap().needs();
        (vector, linear)
    };
    assert_eq!(needs("lr"), (false, true));
    for kind in ["fm", "wide_deep", "deepfm"] {
        assert_eq!(needs(kind), (true, true), "{kind}");
    }
    assert_eq!(needs("din'\nwide = true #'"), (true, true));
    for kind in ["dnn", "dcn", "dcnv2", "dlrm", "din"] {
        assert_eq!(needs(kind), (true, false), "{kind}");
    }
}
