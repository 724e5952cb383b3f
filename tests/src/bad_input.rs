//! Tests of the error messages for bad input. Each message must name the place of the problem and
//! the remedy.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use zillion_feature::random::{combine, mix64, text_seed};

use crate::harness::{HEADER, JOB, Workplace, csv, row, stderr, zillion};

/// Runs the job, and asserts that it fails with exit code `code` and that the message contains all
/// texts of `parts`.
fn refused(place: &Workplace, more: &[&str], code: i32, parts: &[&str]) {
    let (exit, said) = place.train_fails(more);
    assert_eq!(exit, code, "{said}");
    for part in parts {
        assert!(said.contains(part), "expected `{part}` in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn unknown_keys_of_the_job_file_are_refused() {
    let place = Workplace::new();
    for (set, parts) in [
        ("train.lerning_rate=1", ["train.lerning_rate", "unknown key"]),
        ("train.epoch=1", ["train.epoch", "did you mean `epochs`?"]),
        ("modle.kind=\"fm\"", ["modle", "did you mean `model`?"]),
        ("model.hiden=[3]", ["model.hiden", "did you mean `hidden`?"]),
        ("model.kind=\"deepfmm\"", ["deepfmm", "did you mean `deepfm`?"]),
        ("tables.itm.dim=3", ["tables.itm", "did you mean `item`?"]),
        ("tables.item.optimizer={kind=\"adm\"}", ["tables.item.optimizer", "did you mean `adam`?"]),
        ("tables.user.dim=\"big\"", ["tables.user.dim", "must be a whole number"]),
        ("features.user.typ=\"i64\"", ["features.user.typ", "did you mean `type`?"]),
        ("data.shufle=true", ["data.shufle", "did you mean `shuffle`?"]),
        ("run.thread=1", ["run.thread", "did you mean `threads`?"]),
        ("train.batch_size=0", ["train.batch_size", "of at least 1"]),
        ("train.clip_norm=-1", ["train.clip_norm", "above 0"]),
    ] {
        refused(&place, &["--set", set], 2, &parts);
    }
}

#[test]
fn whole_table_rules_need_a_dense_table() {
    let place = Workplace::new();
    let adam = "tables.user.optimizer={kind=\"adam\",lr=0.1,scope=\"table\"}";
    refused(&place, &["--set", adam], 2, &["tables.user", "dense = true"]);
    let lazy = "tables.item.optimizer={kind=\"adam\",lr=0.1,scope=\"touched\"}";
    refused(&place, &["--set", lazy], 2, &["tables.item", "l2_scope"]);
    let cap = "tables.item.max_rows=10";
    refused(&place, &["--set", cap], 1, &["item", "10", "max_rows"]);
}

#[test]
fn a_file_that_is_no_job_is_refused() {
    let place = Workplace::new();
    place.write("broken.toml", "seed = = 3");
    let result = zillion(&["train", &place.text("broken.toml")]).output().expect("it runs");
    assert_eq!(result.status.code(), Some(2));
    assert!(stderr(&result).contains("not valid TOML"), "{}", stderr(&result));
    let result = zillion(&["train", &place.text("absent.toml")]).output().expect("it runs");
    assert_eq!(result.status.code(), Some(2));
    assert!(stderr(&result).contains("absent.toml"), "{}", stderr(&result));
}

#[test]
fn a_missing_column_is_named_with_the_nearest() {
    let place = Workplace::new();
    place.write("train.csv", &csv(0, 50).replace("price", "prize"));
    refused(&place, &[], 1, &["train.csv", "`price`", "`prize`"]);
}

#[test]
fn a_missing_file_is_named() {
    let place = Workplace::new();
    refused(&place, &["--set", "data.train=\"nothing-*.csv\""], 1, &["nothing-*.csv"]);
    refused(&place, &["--set", "data.train=\"gone.csv\""], 1, &["gone.csv"]);
}

#[test]
fn the_second_file_must_have_the_same_columns() {
    let place = Workplace::new();
    place.write("more.csv", "user,item,tags,price,label\nu1,2,t1,3.5,1\n");
    let both = "data.train=[\"train.csv\", \"more.csv\"]";
    refused(&place, &["--set", both], 1, &["more.csv", "`age`"]);
}

#[test]
fn labels_other_than_zero_and_one_are_refused() {
    let place = Workplace::new();
    place.write("train.csv", &format!("{}u1,2,t1,3.5,7,2\n", csv(0, 40)));
    refused(&place, &[], 1, &["train.csv", "41", "label", "2"]);
}

#[test]
fn files_without_rows_are_refused() {
    let place = Workplace::new();
    place.write("train.csv", "");
    refused(&place, &[], 1, &["train.csv", "empty"]);
    place.write("train.csv", &format!("{HEADER}\n"));
    refused(&place, &[], 1, &["train.csv", "no rows"]);
}

#[test]
fn ids_that_do_not_parse_are_refused() {
    let place = Workplace::new();
    place.write("train.csv", &format!("{}u1,twelve,t1,3.5,7,1\n", csv(0, 40)));
    refused(&place, &[], 1, &["train.csv", "41", "`item`", "twelve"]);
    place.write("train.csv", &format!("{}u1,-4,t1,3.5,7,1\n", csv(0, 40)));
    let unsigned = ["--set", "features.item.type=\"u64\""];
    refused(&place, &unsigned, 1, &["train.csv", "41", "`item`", "-4"]);
}

#[test]
fn nan_and_infinity_in_a_numeric_column_are_refused() {
    for (text, value) in [("NaN", "NaN"), ("inf", "inf"), ("-inf", "-inf"), ("1e999", "1e999")] {
        let place = Workplace::new();
        place.write("train.csv", &format!("{}u1,2,t1,{text},7,1\n", csv(0, 40)));
        refused(&place, &[], 1, &["train.csv", "41", "`price`", value]);
    }
}

#[test]
fn a_missing_number_without_a_default_is_refused() {
    let place = Workplace::new();
    place.write("train.csv", &format!("{}u1,2,t1,,7,1\n", csv(0, 40)));
    refused(&place, &[], 1, &["train.csv", "41", "`price`", "missing"]);
    place.train_ok("filled", &["--set", "features.price.missing=0.0"]);
}

#[test]
fn a_row_that_is_too_short_is_refused() {
    let place = Workplace::new();
    place.write("train.csv", &format!("{}u1,2,t1\n", csv(0, 40)));
    refused(&place, &[], 1, &["train.csv", "41"]);
}

fn write_parquet(path: &Path, items: ArrayRef, prices: Vec<f64>) {
    let rows = prices.len();
    let columns: [(&str, ArrayRef); 6] = [
        ("user", Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("u{}", i % 7))))),
        ("item", items),
        ("tags", Arc::new(StringArray::from_iter_values((0..rows).map(|_| "t1|t2")))),
        ("price", Arc::new(Float64Array::from(prices))),
        ("age", Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|i| i % 60)))),
        ("label", Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|i| i % 2)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("columns of equal length");
    let file = fs::File::create(path).expect("the temporary folder takes files");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a plain schema");
    writer.write(&batch).expect("it is written");
    writer.close().expect("it is closed");
}

#[test]
fn damaged_and_mistyped_parquet_is_refused() {
    let place = Workplace::new();
    let file = place.path("train.parquet");
    let train = ["--set", "data.train=\"train.parquet\""];
    let ids = || Arc::new(Int64Array::from_iter_values(0..60)) as ArrayRef;

    write_parquet(&file, ids(), (0..60).map(f64::from).collect());
    place.train_ok("good", &train);
    let bytes = fs::read(&file).expect("it is there");
    for keep in [0, 3, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&file, &bytes[..keep]).expect("it can be replaced");
        refused(&place, &train, 1, &["train.parquet"]);
    }

    let halves = (0..60).map(|i| f64::from(i) / 2.0);
    let floats = Arc::new(Float64Array::from_iter_values(halves)) as ArrayRef;
    write_parquet(&file, floats, (0..60).map(f64::from).collect());
    refused(&place, &train, 1, &["train.parquet", "`item`", "\"0.5\" is not a whole number"]);

    for bad in [f64::NAN, f64::INFINITY] {
        let mut prices: Vec<f64> = (0..60).map(f64::from).collect();
        prices[41] = bad;
        write_parquet(&file, ids(), prices);
        refused(&place, &train, 1, &["train.parquet", "42", "`price`"]);
    }
}

#[test]
fn a_full_disk_while_checkpointing_harms_nothing() {
    let place = Workplace::new();
    place.train_ok("reference", &[]);
    for operation in [8, 14, 35] {
        let output = format!("full-{operation}");
        let result = place
            .train(&output, &[])
            .env("ZILLION_FAILPOINT", format!("{operation}:enospc"))
            .output()
            .expect("the binary runs");
        assert_eq!(result.status.code(), Some(1));
        let said = stderr(&result);
        assert!(said.contains("free") && said.contains("space"), "{said}");
        assert!(said.contains(&output), "the path is named: {said}");
        place.train_ok(&output, &["--resume"]);
        assert_eq!(
            place.digest(&format!("{output}/checkpoints")),
            place.digest("reference/checkpoints")
        );
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_checkpoint_is_refused_by_name() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1", "--set", "train.keep=1"]);
    let files = place.digest("run/checkpoints");
    assert!(files.len() >= 6, "manifest, dense file, four tables: {files:?}");
    for name in files.keys() {
        let path = place.path("run/checkpoints").join(name);
        let good = fs::read(&path).expect("it is there");
        // The places are the ends of the file and some pseudo-random positions.
        let somewhere =
            |i: u64| (mix64(combine(text_seed(7, name), i)) % good.len() as u64) as usize;
        for share in 0..5 {
            let at = match share {
                0 => 0,
                1 => good.len() - 1,
                other => somewhere(other),
            };
            let mut bad = good.clone();
            bad[at] ^= 1 << (share % 8);
            fs::write(&path, &bad).expect("it can be replaced");
            let file = path.file_name().and_then(|n| n.to_str()).expect("a plain name");
            let test = place.text("test.csv");
            let result = zillion(&["eval", &place.text("run"), "--data", &test])
                .output()
                .expect("the binary runs");
            let said = stderr(&result);
            assert_eq!(result.status.code(), Some(1), "byte {at} of {name}: {said}");
            assert!(
                said.contains(file) && !said.contains("panicked"),
                "byte {at} of {name}: {said}"
            );
            let resume = ["--resume", "--set", "train.epochs=2", "--set", "train.keep=1"];
            let result = place.train("run", &resume).output().expect("the binary runs");
            let said = stderr(&result);
            assert_eq!(result.status.code(), Some(1), "byte {at} of {name}: {said}");
            assert!(said.contains(file), "byte {at} of {name}: {said}");
        }
        // A file that is cut off at any position is refused too.
        for cut in [0, 1, good.len() / 2, somewhere(10), somewhere(11), good.len() - 1] {
            fs::write(&path, &good[..cut]).expect("it can be replaced");
            let data = place.text("test.csv");
            let result =
                zillion(&["eval", &place.text("run"), "--data", &data]).output().expect("it runs");
            let said = stderr(&result);
            assert_eq!(result.status.code(), Some(1), "{cut} bytes of {name}: {said}");
            assert!(!said.contains("panicked"), "{cut} bytes of {name}: {said}");
        }
        fs::write(&path, &good).expect("it can be replaced");
    }
    let result = zillion(&["eval", &place.text("run"), "--data", &place.text("test.csv")]).output();
    assert!(result.expect("it runs").status.success(), "mended, it is whole again");
}

#[test]
fn a_checkpoint_of_another_schema_is_refused_by_key() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    for (set, key) in [
        ("features.user.type=\"i64\"", "features.user.type"),
        ("tables.item.dim=8", "tables.item.dim"),
        ("tables.user.dim=8", "tables.user.dim"),
        ("tables.user.dtype=\"bf16\"", "tables.user.dtype"),
        ("model.hidden=[16]", "model.hidden"),
        ("seed=9", "seed"),
    ] {
        let resumed =
            place.train("run", &["--resume", "--set", set]).output().expect("the binary runs");
        assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
        assert!(stderr(&resumed).contains(key), "{}", stderr(&resumed));
    }
    let (user, item) =
        ("[features.user]\nkind = \"id\"\ntype = \"string\"\n", "[features.item]\nkind = \"id\"\n");
    place.write("job.toml", &JOB.replace(&format!("{user}{item}"), &format!("{item}{user}")));
    let resumed = place.train("run", &["--resume"]).output().expect("the binary runs");
    assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
    assert!(stderr(&resumed).contains("order of features"), "{}", stderr(&resumed));

    let other = JOB.replace(
        "[features.user]\nkind = \"id\"\ntype = \"string\"",
        "[features.user]\nkind = \"id\"",
    );
    assert_ne!(other, JOB);
    place.write("other.toml", &other);
    let result = zillion(&["eval", &place.text("run"), "--job", &place.text("other.toml")])
        .output()
        .expect("the binary runs");
    assert_eq!(result.status.code(), Some(3), "{}", stderr(&result));
    assert!(stderr(&result).contains("features.user.type"), "{}", stderr(&result));
}

#[test]
fn other_files_in_the_middle_of_an_epoch_are_refused() {
    let place = Workplace::new();
    let result = place
        .train("run", &["--set", "data.train=\"train*.csv\""])
        .env("ZILLION_FAILPOINT", "45:kill")
        .output()
        .expect("the binary runs");
    assert!(!result.status.success());
    place.write("train-more.csv", &csv(7, 90));
    let resumed = place
        .train("run", &["--resume", "--set", "data.train=\"train*.csv\""])
        .output()
        .expect("the binary runs");
    assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
    assert!(stderr(&resumed).contains("train-more.csv"), "{}", stderr(&resumed));
}

#[test]
fn a_validation_set_of_one_class_cannot_steer_the_schedule() {
    let place = Workplace::new();
    let zeros: String =
        csv(1, 50).lines().filter(|l| !l.ends_with(",1")).map(|l| format!("{l}\n")).collect();
    place.write("valid.csv", &zeros);
    refused(&place, &[], 1, &["one class", "train.plateau"]);
    place.train_ok("loss", &["--set", "train.plateau.metric=\"logloss\""]);
}

#[test]
fn an_existing_run_is_not_overwritten() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    let before = place.digest("run");
    let result = place.train("run", &[]).output().expect("the binary runs");
    assert_eq!(result.status.code(), Some(3));
    assert!(stderr(&result).contains("--resume"), "{}", stderr(&result));
    assert_eq!(place.digest("run"), before);
}

#[test]
fn a_generated_row_has_the_columns_of_the_header() {
    assert_eq!(row(0, 0).split(',').count(), HEADER.split(',').count());
}
