//! Tests of the initial values of parameters, and of writing and reading parameters.

use zillion_nn::{Error, ParamInit, ParamSpec, Params};

fn spec(name: &str, rows: usize, cols: usize, init: ParamInit) -> ParamSpec {
    ParamSpec { name: name.into(), rows, cols, init, trainable: true }
}

fn mean_and_std(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let var = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    (mean, var.sqrt())
}

#[test]
fn beginnings_have_their_distribution() {
    let inits = [
        (ParamInit::XavierNormal, 0.0, (2.0f64 / 700.0).sqrt()),
        (ParamInit::XavierUniform, 0.0, (6.0f64 / 700.0).sqrt() / 3f64.sqrt()),
        (ParamInit::Normal { std: 0.3 }, 0.0, 0.3),
        (ParamInit::Uniform { low: 1.0, high: 3.0 }, 2.0, 2.0 / 12f64.sqrt()),
        (ParamInit::Constant { value: 0.5 }, 0.5, 0.0),
    ];
    for (init, mean, std) in inits {
        let params = Params::init(&[spec("w", 300, 400, init)], 3);
        let (found_mean, found_std) = mean_and_std(params.get("w").unwrap());
        assert!((found_mean - mean).abs() < 0.01 * std.max(1e-6) + 1e-9, "{init:?}: {found_mean}");
        assert!((found_std - std).abs() <= 0.01 * std, "{init:?}: {found_std}");
    }
}

#[test]
fn beginnings_follow_the_name_and_the_seed_and_nothing_else() {
    let (a, b) =
        (spec("a", 3, 4, ParamInit::XavierNormal), spec("b", 3, 4, ParamInit::XavierNormal));
    let both = Params::init(&[a.clone(), b.clone()], 1);
    let alone = Params::init(std::slice::from_ref(&b), 1);
    assert_eq!(both.get("b"), alone.get("b"));
    assert_ne!(both.get("a"), both.get("b"));
    assert_ne!(both.get("b"), Params::init(&[b], 2).get("b"));
}

#[test]
fn a_file_brings_back_every_bit() {
    let specs = [
        spec("mlp.0.weight", 3, 5, ParamInit::XavierNormal),
        spec("mlp.0.bias", 1, 5, ParamInit::Constant { value: -0.0 }),
    ];
    let mut params = Params::init(&specs, 1);
    params.value_mut(params.find("mlp.0.weight").unwrap())[3] = f32::from_bits(1);
    let bytes = params.to_safetensors().unwrap();
    assert_eq!(bytes, params.clone().to_safetensors().unwrap());
    let back = Params::from_safetensors(&specs, &bytes).unwrap();
    for ((_, a), (_, b)) in params.iter().zip(back.iter()) {
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(a), bits(b));
    }
}

#[test]
fn a_file_of_another_model_is_refused_by_name() {
    let w = spec("w", 2, 3, ParamInit::XavierNormal);
    let v = spec("v", 2, 3, ParamInit::XavierNormal);
    let bytes = Params::init(std::slice::from_ref(&w), 1).to_safetensors().unwrap();
    let message =
        |specs: &[ParamSpec]| Params::from_safetensors(specs, &bytes).unwrap_err().to_string();
    let missing = message(&[w.clone(), v.clone()]);
    assert!(
        missing.starts_with("parameter `v`: the file does not have this parameter"),
        "{missing}"
    );
    let unknown = message(&[]);
    assert!(unknown.starts_with("parameter `w`: the file has this parameter, but"), "{unknown}");
    let other = spec("w", 3, 2, ParamInit::XavierNormal);
    assert_eq!(
        message(&[other]),
        "parameter `w`: the file has F32 [2, 3], but the model needs F32 [3, 2]; use the file of \
         this model"
    );
    let torn = Params::from_safetensors(&[w], &bytes[..bytes.len() - 1]);
    assert!(matches!(torn, Err(Error::Safetensors(_))));
}

#[test]
fn values_of_another_model_are_refused_by_name() {
    let w = spec("w", 2, 3, ParamInit::XavierNormal);
    let mut params = Params::init(std::slice::from_ref(&w), 1);
    let other = Params::init(&[spec("w", 3, 2, ParamInit::XavierNormal)], 1);
    assert!(params.copy_from(&other).unwrap_err().to_string().starts_with("parameter `w`: "));
    let fresh = Params::init(&[w], 2);
    params.copy_from(&fresh).unwrap();
    assert_eq!(params, fresh);
}
