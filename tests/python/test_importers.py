"""Jobs from the configurations of other systems."""

import pathlib
import random
import subprocess
import sys

import pytest

import zillion as zl


MODEL_CONFIG = """\
Base:
    model_root: './checkpoints/'
    verbose: 1
    early_stop_patience: 3
    feature_specs: null

Shop:
    model: DeepFM
    dataset_id: shop
    loss: 'binary_crossentropy'
    task: binary_classification
    optimizer: adam
    hidden_units: [32, 16]
    hidden_activations: relu
    net_regularizer: 0
    embedding_regularizer: "l2(1.e-3)"
    learning_rate: 1.e-2
    batch_norm: False
    net_dropout: 0.1
    batch_size: 64
    embedding_dim: 4
    epochs: 2
    seed: 7
    group_id: user
    monitor: 'gAUC'
    gate_type: soft

History:
    model: DIN
    dataset_id: shop
    embedding_dim: 4
    dnn_hidden_units: [16]
    attention_hidden_units: [8]
    attention_hidden_activations: Dice
    din_target_field: item
    din_sequence_field: seen
    monitor: {'AUC': 1, 'logloss': -1}

Other:
    model: AutoInt
    dataset_id: shop
"""

DATASET_CONFIG = """\
shop:
    data_root: data/
    data_format: csv
    train_data: data/train.csv
    valid_data: data/valid.csv
    min_categr_count: 1
    feature_cols:
        - {name: [user, item], active: True, dtype: int, type: categorical}
        - {name: price, dtype: float, type: numeric, normalizer: StandardScaler}
        - {name: city, active: False, dtype: str, type: categorical}
        - {name: seen, dtype: int, type: sequence, splitter: "^", max_len: 5, share_embedding: item}
        - {name: picture, dtype: float, type: embedding}
    label_col: {name: click, dtype: float}
"""

PIPELINE = r"""
train_input_path: "data/train.csv"   # a comment
eval_input_path: 'data/' 'valid.csv'
train_config {
  optimizer_config: { adam_optimizer: { learning_rate: { exponential_decay_learning_rate {
    initial_learning_rate: 0.01 decay_steps: 100 decay_factor: 0.5 min_learning_rate: 0.0001 } } } }
  num_steps: 1000
  fine_tune_checkpoint: "somewhere"
}
data_config {
  separator: "\t"
  input_fields { input_name: "click" input_type: INT32 }
  input_fields { input_name: "user" input_type: INT64 default_val: "0" }
  input_fields { input_name: "item" input_type: STRING }
  input_fields { input_name: "price" input_type: DOUBLE }
  input_fields { input_name: "seen" input_type: STRING }
  label_fields: "click"
  batch_size: 64
  input_type: CSVInput
}
feature_config: {
  features: { input_names: "user" feature_type: IdFeature embedding_dim: 4 hash_bucket_size: 100 }
  features: { input_names: "item" feature_type: IdFeature embedding_dim: 4 hash_bucket_size: 100 }
  features: { input_names: "price" feature_type: RawFeature boundaries: [1, 2.5, 4] embedding_dim: 4 }
  features: { input_names: "seen" feature_type: SequenceFeature separator: "|" embedding_dim: 4 }
  features: { input_names: ["user", "item"] feature_name: "pair" feature_type: ComboFeature embedding_dim: 4 }
  features: { input_names: ["user", "seen"] feature_name: "found" feature_type: LookupFeature }
}
model_config: {
  model_class: "%s"
  feature_groups: {
    group_name: "deep"
    feature_names: ["user", "item", "price", "pair", "found"]
    wide_deep: DEEP
  }
  %s
  embedding_regularization: 1e-5
}
"""

DEEPFM = "deepfm { dnn { hidden_units: [16, 8] use_bn: false } final_dnn { hidden_units: 4 } }"
DIN = """seq_att_groups: { group_name: "din" seq_att_map: { key: "item" hist_seq: "seen" } }
  multi_tower { din_towers { input: "din" dnn { hidden_units: [8, 1] } } final_dnn { hidden_units: 16 } }"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the two files of FuxiCTR."""
    (tmp_path / "model_config.yaml").write_text(MODEL_CONFIG)
    (tmp_path / "dataset_config.yaml").write_text(DATASET_CONFIG)
    return tmp_path


def texts(imported):
    return [str(note) for note in imported.notes]


def test_an_experiment_of_fuxictr_becomes_a_job(folder):
    imported = zl.importers.fuxictr(folder, "Shop")
    job = imported.job.to_dict()
    assert job["model"] == {"kind": "deepfm", "hidden": [32, 16], "activation": "relu", "dropout": 0.1}
    assert list(job["features"]) == ["user", "item", "price", "seen"]
    assert job["features"]["price"] == {"kind": "numeric", "missing": 0, "transform": "standardise"}
    assert job["features"]["seen"]["table"] == "item"
    assert job["data"]["train"] == ["data/train.csv"] and job["data"]["list_separator"] == "^"
    table = job["tables"]["*"]
    assert (table["dim"], table["l2"], table["dense"]) == (4, 1e-3, True)
    assert table["optimizer"] == {"kind": "adam", "lr": 1e-2} == job["train"]["optimizer"]
    assert job["train"]["plateau"]["patience"] == 3 and job["train"]["plateau"]["metric"] == "gauc"
    assert job["columns"] == {"group": "user"} and job["seed"] == 7
    # What was not understood is named with its line.
    assert texts(imported) == [
        "dataset_config.yaml:12: `shop.feature_cols.type`: features of the type embedding are not "
        "supported; picture is left out",
        "model_config.yaml:26: `Shop.gate_type`: is not understood and is left out",
    ]


def test_an_imported_job_trains(folder, rows):
    import pandas

    frame = pandas.DataFrame(rows)[["user", "item", "price", "click"]]
    frame["item"] = frame["item"].str.split().str[1].astype(int)
    frame["seen"] = [[item, item + 1] for item in frame["item"]]
    job = zl.importers.fuxictr(folder, "Shop").job
    job = job.replace(run={"threads": 1}, data={"shuffle": True})
    run = job.train(frame[:1600], valid=frame[1600:], out=folder / "run", progress=False)
    assert (folder / "run").is_dir() and len(run.metrics) > 0


def test_a_history_shares_the_table_of_its_target(folder):
    imported = zl.importers.fuxictr(folder, "History")
    model = imported.job["model"]
    assert model["attention"] == [{"query": "item", "history": "seen"}]
    assert model["attention_activation"] == "dice"
    assert any("`History.monitor`: one metric decides here" in text for text in texts(imported))


def test_what_has_no_counterpart_is_refused_with_its_line(folder):
    with pytest.raises(zl.JobError, match=r"model_config.yaml:\d+: `Other.model`: no model here is like AutoInt"):
        zl.importers.fuxictr(folder, "Other")
    with pytest.raises(zl.JobError, match="there is no experiment 'None'; found|no experiment"):
        zl.importers.fuxictr(folder, "None")
    (folder / "dataset_config.yaml").write_text("other: {data_format: csv}\n")
    with pytest.raises(zl.JobError, match="there is no data set 'shop'"):
        zl.importers.fuxictr(folder, "Shop")
    (folder / "dataset_config.yaml").write_text("a: [1, 2\n")
    with pytest.raises(zl.JobError, match="cannot be read as YAML"):
        zl.importers.fuxictr(folder, "Shop")


def test_rare_ids_need_occurrences(folder):
    text = DATASET_CONFIG.replace("min_categr_count: 1", "min_categr_count: 10")
    (folder / "dataset_config.yaml").write_text(text)
    imported = zl.importers.fuxictr(folder, "Shop")
    table = imported.job["tables"]["*"]
    assert table["admission"] == {"kind": "count", "at_least": 10} and "dense" not in table
    assert any("shop.min_categr_count" in text for text in texts(imported))


def write_pipeline(folder, kind, model):
    path = folder / "shop.config"
    path.write_text(PIPELINE % (kind, model))
    return path


def test_a_pipeline_of_easyrec_becomes_a_job(tmp_path):
    imported = zl.importers.easyrec(write_pipeline(tmp_path, "DeepFM", DEEPFM))
    job = imported.job.to_dict()
    assert job["model"] == {"kind": "deepfm", "hidden": [16, 8]}
    assert job["features"]["item"]["type"] == "string" and job["features"]["user"]["type"] == "i64"
    assert job["features"]["price"] == {"kind": "bucketized", "boundaries": [1.0, 2.5, 4.0]}
    assert job["features"]["pair"] == {"kind": "cross", "of": ["user", "item"]}
    assert "seen" not in job["features"] and "found" not in job["features"]
    assert job["data"]["valid"] == ["data/valid.csv"] and job["data"]["delimiter"] == "\t"
    assert job["data"]["header"] == ["click", "user", "item", "price", "seen"]
    assert job["train"]["schedule"]["decay"] == {"kind": "step", "every": 100, "factor": 0.5, "floor": 0.01}
    found = texts(imported)
    for wanted in (
        "shop.config:7: `train_config.num_steps`",
        "shop.config:8: `train_config.fine_tune_checkpoint`: is not understood and is left out",
        "`feature_config.features.hash_bucket_size`: every id has a row of its own",
        "found, a LookupFeature, has no counterpart",
        "`model_config.deepfm.final_dnn`: the parts of the model are added up",
    ):
        assert any(wanted in text for text in found), (wanted, found)


def test_attention_of_easyrec(tmp_path):
    imported = zl.importers.easyrec(write_pipeline(tmp_path, "MultiTowerDIN", DIN))
    job = imported.job.to_dict()
    assert job["model"]["attention"] == [{"query": "item", "history": "seen"}]
    assert job["model"]["attention_hidden"] == [8] and job["model"]["hidden"] == [16]
    assert job["features"]["seen"]["table"] == "item"


def test_a_broken_pipeline_is_an_error_with_a_line(tmp_path):
    path = tmp_path / "broken.config"
    for text, wanted in (
        ("model_config { model_class: 'DIN' ", "ends where a field or '}' is expected"),
        ("a: 1\nb = 2", "broken.config:2: '=' is not expected"),
        ("a {", "the file ends"),
        ("a: }", "stands where a value is expected"),
        ("a 1", "':' or '{' is expected"),
        ("a: " + "[" * 10_000, "nested more than 64 deep"),
        ("a {" * 10_000, "nested more than 64 deep"),
        ("a: 1", "model_config"),
        (PIPELINE % ("BST", ""), "no model here is like BST"),
    ):
        path.write_text(text)
        with pytest.raises(zl.JobError) as raised:
            zl.importers.easyrec(path)
        assert wanted in str(raised.value), raised.value


def test_damaged_files_raise_nothing_but_errors_of_jobs(folder):
    draw = random.Random(11)
    path = folder / "damaged.config"
    dataset = folder / "dataset_config.yaml"
    marks = "{}[]<>:;,'\"\\#\n\t -1e9\x00ä"

    def damage(text):
        parts = list(text)
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(parts))
            parts[at] = draw.choice(["", draw.choice(marks), parts[at] * 3, text[at : at + 40]])
        return "".join(parts)

    for _ in range(100):
        path.write_text(damage(PIPELINE % ("DeepFM", DEEPFM)))
        dataset.write_text(damage(DATASET_CONFIG))
        for read in (lambda: zl.importers.easyrec(path), lambda: zl.importers.fuxictr(folder, "Shop")):
            try:
                read()
            except zl.JobError:
                pass


def test_the_command_writes_a_job_file(folder):
    command = [sys.executable, "-m", "zillion.importers", "fuxictr", str(folder), "Shop"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    path = pathlib.Path(folder / "job.toml")
    path.write_text(done.stdout)
    assert zl.Job.from_toml(path) == zl.importers.fuxictr(folder, "Shop").job
    assert "is not understood" in done.stderr
    failed = subprocess.run([*command[:-1], "None"], capture_output=True, text=True)
    assert failed.returncode == 1 and "there is no experiment" in failed.stderr
