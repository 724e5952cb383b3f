"""Jobs: their keys, their text, and their check."""

import pathlib

import pytest

import zillion as zl


def test_a_wrong_key_names_the_nearest_right_one(job):
    with pytest.raises(zl.JobError, match="unknown key `train.epoch`; did you mean `epochs`"):
        job.replace(train={"epoch": 3})
    with pytest.raises(zl.JobError, match="did you mean `deepfm`"):
        job.replace(model={"kind": "deepfn"})
    with pytest.raises(zl.JobError, match="unknown key `feilds`"):
        zl.Job(feilds={})


def test_a_job_and_its_text_are_the_same(job, tmp_path):
    text = job.to_toml()
    assert zl.Job.from_toml(text) == job
    path = tmp_path / "job.toml"
    path.write_text(text)
    assert zl.Job.from_toml(path) == job
    assert zl.Job.from_toml(str(path)) == job
    # The order of the features is the order of the model's columns.
    assert list(zl.Job.from_toml(text).to_dict()["features"]) == ["user", "item", "tags", "price"]
    assert "shuffle_window" in job.to_toml(defaults=True)
    assert "shuffle_window" not in text


def test_jobs_are_equal_by_what_has_a_meaning(job):
    sections = job.to_dict()
    turned = zl.Job(dict(reversed(list(sections.items()))))
    assert turned == job and hash(turned) == hash(job)
    features = dict(reversed(list(sections["features"].items())))
    assert zl.Job({**sections, "features": features}) != job
    assert job.replace(seed=1) != job


def test_replace_merges_by_keys_and_kinds(job):
    other = job.replace(train={"epochs": 5}, model={"kind": "lr"})
    assert other["train"] == {"epochs": 5, "batch_size": 128}
    assert other["model"] == {"kind": "lr"}
    assert job["train"]["epochs"] == 2


def test_values_without_a_form_name_their_key(job):
    with pytest.raises(zl.JobError, match="`train.epochs` is None"):
        job.replace(train={"epochs": None})
    with pytest.raises(zl.JobError, match="`train.epochs` is of the class object"):
        job.replace(train={"epochs": object()})
    with pytest.raises(zl.JobError, match="not finite"):
        job.replace(train={"clip_norm": float("nan")})


def test_a_missing_or_wrong_file_is_an_error(tmp_path):
    with pytest.raises(zl.JobError, match="cannot read the job file"):
        zl.Job.from_toml(tmp_path / "none.toml")
    with pytest.raises(zl.JobError, match="not valid TOML"):
        zl.Job.from_toml("a = = 1\n")
    with pytest.raises(zl.JobError, match="`extends` needs the folder"):
        zl.Job.from_toml("extends = 'other.toml'\n")


def test_a_job_file_of_the_examples_is_read():
    root = pathlib.Path(__file__).resolve().parents[2]
    job = zl.Job.from_toml(root / "examples/clicks/job.toml")
    assert job.name == "clicks"
    assert str(job.output) == "runs/clicks"


def test_check_finds_the_cost_and_the_problems(job, rows):
    report = job.check(rows)
    assert report.ok, str(report)
    assert {table["name"] for table in report.tables} == {"user", "item", "tags"}
    assert report.data["rows"] == 2000
    bad = job.check([{**row, "click": 0} for row in rows[:50]])
    assert not bad.ok
    assert any("label" in finding["about"] for finding in bad.findings), str(bad)


def test_a_job_is_drafted_for_data_in_memory(rows, tmp_path):
    job = zl.Job.draft(rows[:1600], valid=rows[1600:], label="click")
    sections = job.to_dict()
    assert set(sections["features"]) == {"user", "item", "tags", "price"}
    assert "data" not in sections or "train" not in sections["data"]
    assert sections["train"]["epochs"] > 5 and "different whole numbers" in job.drafted
    run = job.train(rows[:1600], valid=rows[1600:], out=tmp_path / "run", progress=False)
    assert max(run.metrics["valid_auc"]) > 0.7
    assert zl.Job.draft(rows, label="click", model="lr")["model"]["kind"] == "lr"
    with pytest.raises(zl.JobError, match="no file .*none.csv"):
        zl.Job.draft(tmp_path / "none.csv")
    with pytest.raises(zl.Error, match="clik"):
        zl.Job.draft(rows, label="clik")
