//! Tests of the command `zillion data convert`. The new files must have the same rows as the
//! sources, even if the command is killed several times.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_ipc::reader::FileReader;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;
use zillion_feature::random::mix64;

use crate::harness::{Workplace, csv, stderr, stdout, zillion};

/// Returns the command `zillion data convert INPUT --output OUTPUT`.
fn convert(place: &Workplace, input: &str, output: &str, more: &[&str]) -> Command {
    let (input, output) = (place.text(input), place.text(output));
    let mut arguments = vec!["data", "convert", &input, "--output", &output];
    arguments.extend(more);
    zillion(&arguments)
}

fn ok(mut command: Command) -> Value {
    let output = command.arg("--json").output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

fn fails(mut command: Command) -> (i32, String) {
    let output: Output = command.output().expect("the binary runs");
    assert!(!output.status.success(), "expected a failure\n{}", stderr(&output));
    (output.status.code().unwrap_or(-1), stderr(&output))
}

/// Returns the columns and the rows of a converted file. Each column and each row is a text.
fn shown(place: &Workplace, name: &str) -> (Vec<String>, Vec<String>) {
    let path = place.path(name);
    let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let batches: Vec<RecordBatch> = match path.extension().and_then(|e| e.to_str()) {
        Some("arrow") => {
            FileReader::try_new(file, None).expect("Arrow").collect::<Result<_, _>>().expect("rows")
        }
        _ => {
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
            reader.build().expect("Parquet").collect::<Result<_, _>>().expect("rows")
        }
    };
    let fields = batches[0].schema();
    let fields = fields.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type()));
    let mut rows = Vec::new();
    for batch in &batches {
        for row in 0..batch.num_rows() {
            let cells = batch.columns().iter().map(|column| value(column, row));
            rows.push(cells.collect::<Vec<_>>().join(" ; "));
        }
    }
    (fields.collect(), rows)
}

fn value(column: &arrow_array::ArrayRef, row: usize) -> String {
    use arrow_array::cast::AsArray;
    use arrow_array::types::*;
    use arrow_schema::DataType;
    if column.is_null(row) {
        return "null".to_owned();
    }
    match column.data_type() {
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::UInt64 => column.as_primitive::<UInt64Type>().value(row).to_string(),
        DataType::UInt8 => column.as_primitive::<UInt8Type>().value(row).to_string(),
        DataType::Float32 => column.as_primitive::<Float32Type>().value(row).to_string(),
        DataType::Float64 => column.as_primitive::<Float64Type>().value(row).to_string(),
        DataType::Utf8 => column.as_string::<i32>().value(row).to_owned(),
        DataType::List(_) => {
            let list = column.as_list::<i32>().value(row);
            let values: Vec<String> = (0..list.len()).map(|i| value(&list, i)).collect();
            format!("[{}]", values.join(","))
        }
        other => panic!("a column of type {other}"),
    }
}

/// Returns the files of a folder, without the temporary files of killed writes.
fn visible(place: &Workplace, name: &str) -> BTreeMap<String, String> {
    place.digest(name).into_iter().filter(|(path, _)| !path.starts_with('.')).collect()
}

#[test]
fn every_text_format_becomes_the_same_rows() {
    let place = Workplace::new();
    let rows = "id,name,tags,x,big,flag\n\
                7,a b,x|y,1.5,18446744073709551615,true\n\
                -8,\"c,\"\"d\",,,0,false\n\
                ,,y,-2e3,3,true\n";
    place.write("rows.csv", rows);
    let wanted_types = [
        "id Int64",
        "name Utf8",
        "tags List(non-null Utf8)",
        "x Float64",
        "big UInt64",
        "flag UInt8",
    ];
    let wanted = [
        "7 ; a b ; [x,y] ; 1.5 ; 18446744073709551615 ; 1",
        "-8 ; c,\"d ; [] ; null ; 0 ; 0",
        "null ; null ; [y] ; -2000 ; 3 ; 1",
    ];
    let lists = ["--type", "tags=list<string>"];
    for output in ["rows.parquet", "rows.arrow"] {
        let done = ok(convert(&place, "rows.csv", output, &lists));
        assert_eq!(done["rows"], 3);
        let (types, found) = shown(&place, output);
        assert_eq!(types, wanted_types, "{output}");
        assert_eq!(found, wanted, "{output}");
    }
    // The inputs are TSV files with and without compression, JSON lines, and a converted file in
    // each format.
    let tsv = rows.replace("\"c,\"\"d\"", "c;d").replace(',', "\t").replace("c;d", "\"c,\"\"d\"");
    place.write("rows.tsv", &tsv);
    for pack in [&["gzip", "-kf"][..], &["zstd", "-qkf"]] {
        let packed = Command::new(pack[0]).args(&pack[1..]).arg(place.path("rows.tsv")).status();
        // The zstd program may be missing. The reader has its own decompressor.
        if packed.is_ok_and(|status| status.success()) {
            let ending = if pack[0] == "gzip" { "gz" } else { "zst" };
            let output = format!("{ending}.parquet");
            ok(convert(&place, &format!("rows.tsv.{ending}"), &output, &lists));
            assert_eq!(shown(&place, &output).1, wanted, "{ending}");
        }
    }
    let json = "{\"id\":7,\"name\":\"a b\",\"tags\":[\"x\",\"y\"],\"x\":1.5,\"big\":18446744073709551615,\"flag\":true}\n\
                {\"id\":-8,\"name\":\"c,\\\"d\",\"tags\":[],\"x\":null,\"big\":0,\"flag\":false}\n\
                {\"id\":null,\"tags\":[\"y\",null],\"x\":-2e3,\"big\":3,\"flag\":true}\n";
    place.write("rows.jsonl", json);
    ok(convert(&place, "rows.jsonl", "json.parquet", &[]));
    let (types, found) = shown(&place, "json.parquet");
    assert_eq!(types, wanted_types);
    assert_eq!(found, wanted);
    ok(convert(&place, "rows.parquet", "again.arrow", &[]));
    assert_eq!(shown(&place, "again.arrow").1, wanted);
    ok(convert(&place, "rows.arrow", "again.parquet", &[]));
    assert_eq!(shown(&place, "again.parquet").1, wanted);

    // The inputs are a file without a header (the job has the names of its columns), a libsvm file
    // with weights, and a libffm file with fields.
    place.write("bare.csv", "1,2\n3,4\n");
    ok(convert(&place, "bare.csv", "bare.parquet", &["--set", "data.header=[\"a\",\"b\"]"]));
    assert_eq!(shown(&place, "bare.parquet").1, ["1 ; 2", "3 ; 4"]);
    place.write("v.libsvm", "+1 3:1 7:0.5 # a comment\n-1 2:2\n0\n");
    ok(convert(&place, "v.libsvm", "v.parquet", &["--type", "label=float"]));
    let (types, found) = shown(&place, "v.parquet");
    assert_eq!(
        types,
        [
            "label Float64",
            "features List(non-null Int64)",
            "features.weights List(non-null Float32)"
        ]
    );
    assert_eq!(found, ["1 ; [3,7] ; [1,0.5]", "-1 ; [2] ; [2]", "0 ; [] ; []"]);
    place.write("v.libffm", "1 0:3:1 1:7:1\n0 0:4:1\n");
    ok(convert(&place, "v.libffm", "ffm.arrow", &["--type", "field_0=uint64"]));
    let (types, found) = shown(&place, "ffm.arrow");
    assert_eq!(types[1..3], ["field_0 UInt64", "field_1 List(non-null Int64)"]);
    assert_eq!(found, ["1 ; 3 ; [7] ; [1]", "0 ; 4 ; [] ; []"]);
}

#[test]
fn training_from_the_new_files_gives_the_same_bytes() {
    let place = Workplace::new();
    let tables_of = |output: &str, train: &str, more: &[&str]| {
        let train = format!("data.train={train}");
        let mut arguments = vec!["--set", "train.epochs=2", "--set", &train];
        arguments.extend(more);
        place.train_ok(output, &arguments);
        let files = place.digest(&format!("{output}/checkpoints"));
        files.into_iter().filter(|(name, _)| !name.ends_with("MANIFEST")).collect::<Vec<_>>()
    };
    let reference = tables_of("plain", "\"train.csv\"", &[]);
    let job = place.text("job.toml");
    // The types come from the job, or they are guessed from the columns.
    for (name, more) in
        [("by-job", &["--job", &job][..]), ("guessed", &["--type", "tags=list<string>"])]
    {
        for to in ["parquet", "arrow"] {
            let output = format!("{name}-{to}");
            ok(convert(&place, "train.csv", &output, &[&["--to", to], more].concat()));
            let train = format!("\"{output}\"");
            assert_eq!(tables_of(&format!("run-{output}"), &train, &[]), reference, "{output}");
        }
    }
    // The output is cut into parts and groups, in the order of the file.
    let unshuffled = ["--set", "data.shuffle=false"];
    let reference = tables_of("unshuffled", "\"train.csv\"", &unshuffled);
    let cut = ["--part-rows", "400", "--group-rows", "150", "--job", &job];
    let done = ok(convert(&place, "train.csv", "parts", &cut));
    assert_eq!(done["files"].as_array().map(Vec::len), Some(4));
    assert_eq!(tables_of("run-parts", "\"parts\"", &unshuffled), reference);
}

#[test]
fn bad_rows_are_named_or_left_out_and_listed() {
    let place = Workplace::new();
    let mut text = "id,x\n".to_owned();
    // The bad rows come after the rows from which the types are guessed, so the guess does not see
    // them.
    for row in 0..60_000 {
        match row {
            55_000 => text.push_str("55000,oops\n"),
            55_500 => text.push_str("55500\n"),
            59_999 => text.push_str("never,1\n"),
            row => writeln!(text, "{row},{}.5", row % 10).expect("memory"),
        }
    }
    place.write("bad.csv", &text);
    let (code, said) = fails(convert(&place, "bad.csv", "out", &[]));
    assert_eq!(code, 1);
    for part in ["bad.csv", "55001", "`x`", "oops", "--type x=string", "--max-bad-rows"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (code, said) = fails(convert(&place, "bad.csv", "two", &["--max-bad-rows", "2"]));
    assert!(code == 1 && said.contains("more than 2 bad row(s)"), "{said}");
    let rejects = place.text("rejects.jsonl");
    let more = [
        "--max-bad-rows",
        "3",
        "--rejects",
        &rejects,
        "--part-rows",
        "7000",
        "--group-rows",
        "999",
    ];
    let done = ok(convert(&place, "bad.csv", "three", &more));
    assert_eq!((done["rows"].as_u64(), done["bad_rows"].as_u64()), (Some(59_997), Some(3)));
    let listed = std::fs::read_to_string(&rejects).expect("it was written");
    let listed: Vec<Value> =
        listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |key: &str| listed.iter().map(|r| r[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("row"), [55_001, 55_501, 60_000].map(Value::from));
    assert_eq!(of("line")[0], "55000,oops");
    let (_, rows) = shown(&place, "three/part-00008.parquet");
    assert_eq!(rows.last().map(String::as_str), Some("59998 ; 8.5"));
    // A conversion that a bad row has ended can continue with a higher limit, without `--force`.
    let cut = &more[4..];
    let (code, said) = fails(convert(&place, "bad.csv", "on", cut));
    assert!(code == 1 && said.contains("--max-bad-rows"), "{said}");
    ok(convert(&place, "bad.csv", "on", &[cut, &["--max-bad-rows", "3"]].concat()));
    assert_eq!(shown(&place, "on/part-00008.parquet").1, rows);

    // The first rows do not have one key, so its values would be lost.
    let mut lines: String = (0..1500).map(|i| format!("{{\"a\":{i}}}\n")).collect();
    lines.push_str("{\"a\":1,\"late\":2}\n");
    place.write("late.jsonl", &lines);
    let (_, said) = fails(convert(&place, "late.jsonl", "late.parquet", &[]));
    assert!(said.contains("late") && said.contains("1501"), "{said}");
    let mut lines: String = (0..1500).map(|i| format!("1 0:{i}:1\n")).collect();
    lines.push_str("1 5:3:1\n");
    place.write("late.libffm", &lines);
    let (_, said) = fails(convert(&place, "late.libffm", "ffm.parquet", &[]));
    assert!(said.contains("field_5") && said.contains("1501"), "{said}");
}

#[test]
fn mismatched_inputs_are_refused_by_name() {
    let place = Workplace::new();
    place.write("a.csv", "id,x\n1,2\n");
    place.write("b.csv", "id,y\n1,2\n");
    place.write("c.csv", "id,x,z\n1,2,3\n");
    place.write("empty.csv", "id,x\n");
    let fail = |input: &str, more: &[&str]| fails(convert(&place, input, "out.parquet", more));
    for (input, more, code, said) in [
        ("nowhere.csv", &[][..], 1, "nowhere.csv"),
        ("empty.csv", &[], 1, "empty.csv"),
        ("a.csv", &["--type", "q=int64"], 2, "`q`"),
        ("a.csv", &["--type", "x=decimal"], 2, "list<string>"),
        ("a.csv", &["--to", "arrow"], 2, "out.parquet"),
        ("a.csv", &["--part-rows", "10"], 2, "out.parquet"),
        ("a.csv", &["--set", "train.epochs=1"], 2, "data.*"),
        ("a.csv", &["--set", "data.delimeter=;"], 2, "delimiter"),
        ("a.csv", &["--set", "data.max_bad_rows=3"], 2, "data.max_bad_rows"),
        ("a.csv", &["--job", "nowhere.toml"], 2, "nowhere.toml"),
    ] {
        let (found, text) = fail(input, more);
        assert!(text.contains(said), "{input} {more:?}: {text}");
        assert_eq!(found, code, "{input} {more:?}: {text}");
    }
    // A second file has fewer or more columns.
    for other in ["b.csv", "c.csv"] {
        let other = place.text(other);
        let (_, said) = fails(convert(&place, "a.csv", "both.parquet", &[&other]));
        assert!(said.contains(&other), "{said}");
    }
    ok(convert(&place, "a.csv", "a.parquet", &[]));
    let (_, said) = fail("a.parquet", &["--type", "id=string"]);
    assert!(said.contains("types of its own"), "{said}");
    let text = place.text("a.csv");
    let (_, said) = fails(convert(&place, "a.parquet", "mixed.arrow", &[&text]));
    assert!(said.contains("a.csv"), "{said}");
    // The output must not be an input. A file of another program must not be overwritten.
    let (code, said) = fails(convert(&place, "a.parquet", "a.parquet", &[]));
    assert!(code == 2 && said.contains("a.parquet"), "{said}");
    place.write("taken.parquet", "mine");
    let (code, said) = fails(convert(&place, "a.csv", "taken.parquet", &[]));
    assert!(code == 3 && said.contains("taken.parquet"), "{code} {said}");
    ok(convert(&place, "a.csv", "taken.parquet", &["--force"]));
    std::fs::create_dir(place.path("folder")).expect("a new folder");
    place.write("folder/notes.txt", "mine");
    let (code, said) = fails(convert(&place, "a.csv", "folder", &[]));
    assert!(code == 3 && said.contains("folder"), "{said}");
}

/// The arguments that make a conversion write many small parts, so that a kill often interrupts the
/// conversion in the middle.
const CUT: [&str; 6] = ["--part-rows", "3000", "--group-rows", "700", "--threads", "2"];

#[test]
fn killed_at_random_moments_and_started_again() {
    let place = Workplace::new();
    place.write("rows.csv", &csv(9, 40_000));
    let began = Instant::now();
    ok(convert(&place, "rows.csv", "reference", &CUT));
    let whole = began.elapsed();
    let reference = visible(&place, "reference");
    assert!(reference.len() > 12);
    let (mut killed, mut kept) = (0, 0);
    for kill in 0..12 {
        let output = format!("killed-{kill}");
        for round in 0..2 {
            let mut child = convert(&place, "rows.csv", &output, &CUT)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("the binary runs");
            let share = (mix64(kill * 2 + round) % 1000) as f64 / 1000.0;
            std::thread::sleep(Duration::from_secs_f64(whole.as_secs_f64() * share));
            child.kill().expect("our own child can be killed");
            let status = child.wait().expect("our own child can be waited for");
            killed += u32::from(status.signal() == Some(9));
        }
        kept += ok(convert(&place, "rows.csv", &output, &CUT))["kept_parts"].as_u64().unwrap_or(0);
        assert_eq!(visible(&place, &output), reference, "kill {kill}");
    }
    assert!(killed >= 8 && kept > 0, "{killed} kills, {kept} parts kept");
}

#[test]
fn disturbed_at_every_durable_operation_and_started_again() {
    let place = Workplace::new();
    place.write("rows.csv", &csv(9, 2_500));
    let cut = ["--part-rows", "600", "--group-rows", "250"];
    ok(convert(&place, "rows.csv", "reference", &cut));
    let reference = visible(&place, "reference");
    for fault in ["kill", "torn", "enospc", "eio"] {
        let mut disturbed = 0;
        for operation in 1.. {
            let output = format!("{fault}-{operation}");
            let result = convert(&place, "rows.csv", &output, &cut)
                .env("ZILLION_FAILPOINT", format!("{operation}:{fault}"))
                .output()
                .expect("the binary runs");
            if result.status.success() {
                break;
            }
            disturbed += 1;
            match fault {
                "kill" | "torn" => assert_eq!(result.status.signal(), Some(9)),
                _ => assert_eq!(result.status.code(), Some(1), "{}", stderr(&result)),
            }
            ok(convert(&place, "rows.csv", &output, &cut));
            assert_eq!(visible(&place, &output), reference, "{output}");
            std::fs::remove_dir_all(place.path(&output)).expect("our own folder can be removed");
        }
        assert!(disturbed > 20, "{fault}: only {disturbed} operations were disturbed");
    }
}

#[test]
fn changed_settings_are_refused_and_damaged_parts_made_again() {
    let place = Workplace::new();
    place.write("rows.csv", &csv(9, 5_000));
    let cut = ["--part-rows", "1000", "--group-rows", "300"];
    ok(convert(&place, "rows.csv", "out", &cut));
    let reference = visible(&place, "out");
    let again = ok(convert(&place, "rows.csv", "out", &cut));
    assert_eq!(again["kept_parts"], 5);
    assert_eq!(again["rows"], 5000);

    // Damaged and missing parts are written again, and the other parts are kept.
    std::fs::remove_file(place.path("out/part-00001.parquet")).expect("it is there");
    let path = place.path("out/part-00003.parquet");
    let mut bytes = std::fs::read(&path).expect("it is there");
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).expect("a disk");
    assert_eq!(ok(convert(&place, "rows.csv", "out", &cut))["kept_parts"], 3);
    assert_eq!(visible(&place, "out"), reference);

    for (more, said) in [
        (&["--group-rows", "299"][..], "group rows"),
        (&["--part-rows", "999"], "part rows"),
        (&["--to", "arrow"], "to `parquet`"),
        (&["--type", "item=string"], "columns"),
        (&["--max-bad-rows", "1"], "max bad rows"),
        (&["--set", "data.null=[\"x\"]"], "data.null"),
    ] {
        let mut arguments: Vec<&str> = Vec::new();
        let named = |key: &str| more[0] == key;
        for pair in cut.chunks(2).filter(|pair| !named(pair[0])) {
            arguments.extend(pair);
        }
        arguments.extend(more);
        let (code, text) = fails(convert(&place, "rows.csv", "out", &arguments));
        assert!(code == 3 && text.contains(said), "{more:?}: {code} {text}");
    }
    assert_eq!(visible(&place, "out"), reference, "a refusal changes nothing");
    place.write("rows.csv", &csv(8, 5_000));
    let (code, said) = fails(convert(&place, "rows.csv", "out", &cut));
    assert!(code == 3 && said.contains("rows.csv") && said.contains("changed"), "{said}");
    ok(convert(&place, "rows.csv", "out", &[&cut[..], &["--force"]].concat()));
    assert_ne!(visible(&place, "out"), reference);
    ok(convert(&place, "rows.csv", "fresh", &cut));
    assert_eq!(visible(&place, "fresh"), visible(&place, "out"));
    // A conversion to one output file can be resumed too. Its manifest is beside the file.
    ok(convert(&place, "rows.csv", "one.arrow", &[]));
    assert_eq!(ok(convert(&place, "rows.csv", "one.arrow", &[]))["kept_parts"], 1);
    assert!(place.path("_one.arrow.convert.json").exists());
}
