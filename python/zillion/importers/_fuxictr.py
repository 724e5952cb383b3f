"""Jobs from the YAML files of FuxiCTR (version 2)."""

from __future__ import annotations

import os
import pathlib
import re
import typing

from .._errors import JobError
from .._job import Job
from ._tree import Imported, Note, Section, set_activation

Settings = typing.Dict[str, typing.Any]

# What FuxiCTR does without a key for it.
CLIP_NORM = 10.0
# The largest number of values of a file.
MOST_VALUES = 100_000
INITIALIZER_STD = 1e-4

# The keys of an experiment that change nothing in the result, or that a run decides itself.
WITHOUT_MEANING = (
    "dataset_id", "model_id", "metrics", "model_root", "num_workers", "verbose", "debug_mode",
    "pickle_feature_encoder", "save_best_only", "eval_steps", "monitor_mode", "gpu", "use_hdf5",
    "data_loader", "data_block_size", "partition_block_size", "rebuild_dataset",
)  # fmt: skip


def fuxictr(folder: typing.Union[str, os.PathLike[str]], experiment: str) -> Imported:
    """Returns the job of an experiment of FuxiCTR.

    ``folder`` has ``model_config.yaml`` and ``dataset_config.yaml``, or folders ``model_config``
    and ``dataset_config`` of such files, or one file with both parts. ``experiment`` is the name
    of the experiment. Raises ``JobError`` if a file cannot be read, or if there is no model like
    that of the experiment.
    """
    notes: typing.List[Note] = []
    folder = pathlib.Path(folder)
    parameters = find(folder, "model_config", [experiment, "Base"], notes)
    model = parameters.get(experiment)
    if model is None:
        names = ", ".join(sorted(parameters)) or "none"
        raise JobError(f"{folder}: there is no experiment {experiment!r} in model_config; found: {names}")
    merged = Experiment(model, parameters.get("Base") if experiment != "Base" else None)
    dataset_id = merged.get("dataset_id")
    datasets = find(folder, "dataset_config", [str(dataset_id)], notes)
    dataset = datasets.get(str(dataset_id))
    if dataset is None:
        raise merged.of.error(
            "dataset_id", f"there is no data set {dataset_id!r} in dataset_config of {folder}"
        )
    settings = Importer(dataset, merged).settings(experiment)
    dataset.note_rest()
    merged.of.ignore(*WITHOUT_MEANING)
    merged.of.note_rest()
    return Imported(Job(settings), notes)


def find(
    folder: pathlib.Path, name: str, wanted: typing.List[str], notes: typing.List[Note]
) -> typing.Dict[str, Section]:
    """Returns the parts of the YAML files of one kind, by their names."""
    files = [folder] if folder.is_file() else [folder / f"{name}.yaml", *sorted((folder / name).glob("*.yaml"))]
    found: typing.Dict[str, Section] = {}
    for file in files:
        if file.is_file():
            for entry in load(file, notes).entries:
                if isinstance(entry.value, Section) and (entry.key in wanted or entry.key not in found):
                    found[entry.key] = entry.value
    if not found:
        raise JobError(f"{folder}: there is no {name}.yaml and no file {name}/*.yaml; name their folder")
    return found


def load(file: pathlib.Path, notes: typing.List[Note]) -> Section:
    """Returns the content of a YAML file with its lines."""
    try:
        import yaml
    except ImportError:
        raise JobError("reading YAML files needs PyYAML; install it: pip install pyyaml") from None
    try:
        text = file.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise JobError(f"{file}: this file cannot be read as YAML: {error}") from None
    section = Section(file.name, "", 1, notes)
    convert = yaml.SafeLoader("")
    count = 0

    def value_of(parent: Section, key: str, node: typing.Any, depth: int) -> typing.Any:
        nonlocal count
        count += 1
        # References to one part may expand to very many values.
        if count > MOST_VALUES:
            raise JobError(f"{file}: the file has more than {MOST_VALUES} values; shorten it")
        if depth > 32:
            raise JobError(f"{file}: values are nested more than 32 deep; correct the file")
        if isinstance(node, yaml.MappingNode):
            child = parent.child(key, node.start_mark.line + 1)
            fill(child, node, depth + 1)
            return child
        if isinstance(node, yaml.SequenceNode):
            return [value_of(parent, key, one, depth + 1) for one in node.value]
        try:
            return convert.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise JobError(f"{file}:{node.start_mark.line + 1}: `{key}`: {error}") from None

    def fill(into: Section, node: typing.Any, depth: int) -> None:
        for key, value in node.value:
            name = str(getattr(key, "value", key))
            into.add(name, value_of(into, name, value, depth), key.start_mark.line + 1)

    if isinstance(root, yaml.MappingNode):
        fill(section, root, 0)
    return section


class Experiment:
    """The keys of an experiment. What it does not set is that of the part `Base`."""

    def __init__(self, of: Section, base: typing.Optional[Section]) -> None:
        self.of = of
        names = {entry.key for entry in of.entries}
        if base is not None:
            of.entries.extend(entry for entry in base.entries if entry.key not in names)

    def get(self, key: str, default: typing.Any = None) -> typing.Any:
        return self.of.get(key, default)


class Importer:
    """The translation of one experiment."""

    def __init__(self, dataset: Section, model: Experiment) -> None:
        self.dataset = dataset
        self.model = model.of
        self.features: typing.Dict[str, Settings] = {}
        self.tables: typing.Dict[str, Settings] = {}
        self.columns: Settings = {}
        self.separators: typing.Set[str] = set()
        self.metas: typing.Set[str] = set()

    def settings(self, name: str) -> Settings:
        """Returns the sections of the job."""
        kind = self.model.get("model")
        translate = MODELS.get(str(kind))
        if translate is None:
            known = ", ".join(MODELS)
            raise self.model.error("model", f"no model here is like {kind}; those that are: {known}")
        self.set_features()
        labels, losses = self.labels()
        model = translate(self)
        settings: Settings = {
            "name": re.sub(r"[^A-Za-z0-9_.-]", "-", name),
            "seed": self.model.number("seed", 2019),
            "data": self.data(),
            "features": self.features,
            "labels": labels,
            "tables": {**self.all_tables(), **self.tables},
            "model": model,
            "train": {**self.training(), **({"loss": losses} if losses else {})},
        }
        if self.columns:
            settings["columns"] = self.columns
        return settings

    def data(self) -> Settings:
        data: Settings = {}
        form = str(self.dataset.get("data_format", "csv"))
        self.dataset.ignore("data_root")
        if form not in ("csv", "parquet"):
            self.dataset.note(
                "data_format",
                f"files of the format {form} are not read; give their csv or parquet files in "
                "`data.train`, `data.valid` and `data.test`",
            )
            self.dataset.ignore("train_data", "valid_data", "test_data")
            return data
        for split in ("train", "valid", "test"):
            path = self.dataset.get(f"{split}_data")
            if path is not None:
                data[split] = [str(path)]
        if len(self.separators) > 1:
            found = " and ".join(repr(one) for one in sorted(self.separators))
            self.dataset.note("feature_cols", f"one separator of lists is supported, not {found}")
        for separator in sorted(self.separators)[:1]:
            data["list_separator"] = separator
        data["shuffle"] = bool(self.model.get("shuffle", True))
        return data

    def labels(self) -> typing.Tuple[Settings, Settings]:
        tasks = {str(task) for task in self.model.all("task")}
        if "regression" in tasks and len(tasks) > 1:
            self.model.note("task", "all labels are numbers, or none is; they are numbers")
        is_number = "regression" in tasks
        losses: Settings = {}
        for loss in self.model.all("loss"):
            usual = "mse" if is_number else "binary_crossentropy"
            if str(loss) not in (usual, "mean_squared_error", "mse", "binary_cross_entropy"):
                self.model.note("loss", f"there is no loss {loss}; the usual one is used")
        if is_number:
            losses = {"*": {"kind": "mse"}}
        labels: Settings = {}
        for part in self.dataset.parts("label_col"):
            part.ignore("dtype")
            labels[str(part.get("name"))] = {"kind": "number"} if is_number else {}
        if not labels:
            raise self.dataset.error("label_col", "a label is needed; name its column")
        return labels, losses

    def set_features(self) -> None:
        used = self.model.all("use_features")
        parts = self.dataset.parts("feature_cols")
        for part in parts:
            if part.get("active", True) is False:
                part.ignore(*(entry.key for entry in part.entries))
                continue
            for name in part.all("name"):
                if not used or name in used:
                    self.set_feature(part, str(name))
        if not self.features:
            raise self.dataset.error("feature_cols", "no feature is active; list them")
        group = self.model.get("group_id")
        if group is not None:
            self.columns["group"] = str(group)

    def set_feature(self, part: Section, name: str) -> None:
        kind = str(part.get("type", "categorical"))
        dtype = str(part.get("dtype", "str"))
        part.ignore("source", "vocab_size", "padding", "feature_encoder", "encoder", "oov_idx")
        fill = part.get("fill_na")
        if kind == "meta":
            self.metas.add(name)
            return
        if kind == "numeric":
            feature: Settings = {"kind": "numeric", "missing": fill if fill is not None else 0}
            normalizer = part.get("normalizer")
            if normalizer == "StandardScaler":
                feature["transform"] = "standardise"
            elif normalizer is not None:
                part.note("normalizer", f"there is no transform like {normalizer}; numbers stay as they are")
            part.ignore("min_categr_count", "embedding_dim")
            self.features[name] = feature
            return
        if kind not in ("categorical", "sequence"):
            part.note("type", f"features of the type {kind} are not supported; {name} is left out")
            part.ignore("dtype", "share_embedding", "embedding_dim", "min_categr_count")
            return
        feature = {"kind": "id", "type": "string" if dtype == "str" else "i64"}
        if dtype == "float":
            part.note("dtype", "ids are whole numbers or texts; these are read as whole numbers")
        if fill not in (None, ""):
            part.note("fill_na", "a missing id is an id of its own")
        table = part.get("share_embedding")
        if kind == "sequence":
            feature.update(kind="sequence", max_len=int(part.number("max_len", 50)))
            self.separators.add(str(part.get("splitter", " ")))
        if table is not None:
            feature["table"] = str(table)
        own: Settings = {}
        dim, least = part.number("embedding_dim"), part.number("min_categr_count")
        if dim is not None:
            own["dim"] = int(dim)
        if least is not None and least > 1:
            own.update(admit(least))
        if own and table is None:
            self.tables[name] = own
        if part.get("pretrained_emb") is not None:
            part.note("pretrained_emb", "rows begin at random values; a table cannot begin from a file yet")
        self.features[name] = feature

    def all_tables(self) -> Settings:
        table: Settings = {
            "dim": int(self.model.number("embedding_dim", 10)),
            "initializer": {"kind": "normal", "std": INITIALIZER_STD},
            "optimizer": self.optimizer(),
        }
        least = self.dataset.number("min_categr_count", 1)
        l2 = self.regularizer("embedding_regularizer")
        if least > 1 or any("admission" in own for own in self.tables.values()):
            table.update(admit(least) if least > 1 else {})
            self.dataset.note(
                "min_categr_count",
                "ids get a row at this many occurrences in training, and a row moves only in steps "
                "that use it; FuxiCTR counts before training and moves all rows in each step",
            )
        else:
            # FuxiCTR has a fixed vocabulary, and moves every row in every step.
            table["dense"] = True
        if l2:
            table["l2"] = l2
        return {"*": table}

    def optimizer(self) -> Settings:
        name, rate = str(self.model.get("optimizer", "adam")).lower(), self.model.number("learning_rate", 1e-3)
        if name not in ("adam", "adagrad", "sgd"):
            self.model.note("optimizer", f"there is no optimizer {name} for rows and layers; adam is used")
            name = "adam"
        return {"kind": name, "lr": rate}

    def regularizer(self, key: str) -> float:
        """Returns the strength of a regulariser. FuxiCTR's is (strength/2)·|w|², as ours is."""
        given = self.model.get(key)
        if given is None:
            return 0.0
        match = re.fullmatch(r"(?:l2\()?\s*([-+.\deE]+)\s*\)?", str(given))
        try:
            if match is not None:
                return float(match.group(1))
        except ValueError:
            pass
        self.model.note(key, f"only l2 is supported, not {given}; there is no regulariser")
        return 0.0

    def training(self) -> Settings:
        plateau: Settings = {"factor": 0.1, "min_lr": 1e-6, "min_delta": 1e-6}
        plateau["patience"] = int(self.model.number("early_stop_patience", 2))
        monitors = [entry for entry in self.model.all("monitor")]
        metric = "auc"
        if len(monitors) == 1 and not isinstance(monitors[0], Section):
            metric = {"AUC": "auc", "gAUC": "gauc", "logloss": "logloss"}.get(str(monitors[0]), "")
        elif monitors:
            monitors[0].ignore(*(entry.key for entry in monitors[0].entries))
            metric = ""
        if not metric:
            self.model.note("monitor", "one metric decides here; it is the AUC")
            metric = "auc"
        plateau["metric"] = metric
        if "regression" in map(str, self.model.all("task")):
            plateau.pop("metric")
        return {
            "epochs": int(self.model.number("epochs", 100)),
            "batch_size": int(self.model.number("batch_size", 10_000)),
            "optimizer": self.optimizer(),
            "clip_norm": CLIP_NORM,
            "plateau": plateau,
        }

    def deep(self, kind: str, hidden: str, **names: str) -> Settings:
        """Returns a model with hidden layers. ``names`` are the keys of the configuration."""
        model: Settings = {"kind": kind}
        units = self.model.integers(hidden)
        if units is not None:
            model["hidden"] = units
        set_activation(self.model, names.get("activation", "hidden_activations"), model, "activation")
        dropout = self.model.number(names.get("dropout", "net_dropout"), 0)
        if dropout:
            model["dropout"] = dropout
        if self.model.get("batch_norm", False):
            model["batch_norm"] = True
        l2 = self.regularizer("net_regularizer")
        if l2:
            model["l2"] = l2
        return model


def admit(least: typing.Any) -> Settings:
    return {"admission": {"kind": "count", "at_least": int(least)}}


def make_linear(kind: str) -> typing.Callable[[Importer], Settings]:
    def make(importer: Importer) -> Settings:
        importer.regularizer("net_regularizer")
        return {"kind": kind}

    return make


def make_cross(importer: Importer) -> Settings:
    is_v2 = importer.model.get("model") == "DCNv2"
    form = str(importer.model.get("model_structure", "parallel")) if is_v2 else "parallel"
    hidden = "dnn_hidden_units"
    if is_v2:
        hidden = "stacked_dnn_hidden_units" if form == "stacked" else "parallel_dnn_hidden_units"
        importer.model.ignore("stacked_dnn_hidden_units", "parallel_dnn_hidden_units")
    model = importer.deep("dcnv2" if is_v2 else "dcn", hidden, activation="dnn_activations")
    model["cross_layers"] = int(importer.model.number("num_cross_layers", 3))
    if is_v2:
        if form not in ("parallel", "stacked"):
            if form == "crossnet_only":
                model["hidden"] = []
            else:
                importer.model.note("model_structure", f"{form} is not supported; it is parallel")
            form = "parallel"
        model["structure"] = form
        rank, experts = importer.model.number("low_rank"), importer.model.number("num_experts")
        if importer.model.get("use_low_rank_mixture", False):
            model["low_rank"] = int(rank or 32)
            if experts and experts > 1:
                importer.model.note("num_experts", "a cross has one low-rank matrix, and no mixture of them")
    return model


def make_dlrm(importer: Importer) -> Settings:
    model = importer.deep(
        "dlrm", "top_mlp_units", activation="top_mlp_activations", dropout="top_mlp_dropout"
    )
    importer.model.ignore("bottom_mlp_activations")
    bottom = importer.model.integers("bottom_mlp_units")
    if any(feature["kind"] == "numeric" for feature in importer.features.values()):
        dim = int(importer.model.number("embedding_dim", 10))
        model["bottom"] = [*(bottom or []), dim]
    interaction = str(importer.model.get("interaction_op", "dot"))
    if interaction in ("dot", "cat"):
        model["interaction"] = interaction
    else:
        importer.model.note("interaction_op", f"{interaction} is not supported; it is dot")
    dropout = importer.model.number("bottom_mlp_dropout", 0)
    if dropout:
        model["bottom_dropout"] = dropout
    return model


def make_din(importer: Importer) -> Settings:
    model = importer.deep("din", "dnn_hidden_units", activation="dnn_activations")
    source = importer.model
    queries, histories = source.all("din_target_field"), source.all("din_sequence_field")
    if len(queries) != len(histories) or not queries:
        raise source.error("din_target_field", "needs as many fields as `din_sequence_field`")
    pairs = []
    for query, history in zip(queries, histories):
        for name, key in (query, "din_target_field"), (history, "din_sequence_field"):
            if str(name) not in importer.features:
                raise source.error(key, f"there is no active feature {name}")
        importer.features[str(history)].setdefault("table", str(query))
        pairs.append({"query": str(query), "history": str(history)})
    model["attention"] = pairs
    hidden = source.integers("attention_hidden_units")
    if hidden is not None:
        model["attention_hidden"] = hidden
    set_activation(source, "attention_hidden_activations", model, "attention_activation")
    model["softmax"] = bool(source.get("din_use_softmax", False))
    source.ignore("attention_output_activation")
    if source.number("attention_dropout", 0):
        source.note("attention_dropout", "the layers of the attention have no dropout")
    return model


def make_tasks(importer: Importer) -> Settings:
    source = importer.model
    is_mmoe = source.get("model") == "MMoE"
    model = importer.deep("mmoe" if is_mmoe else "shared_bottom", "hidden_units")
    model.pop("hidden", None)
    if is_mmoe:
        model["experts"] = int(source.number("num_experts", 4))
        model["expert"] = source.integers("expert_hidden_units") or [128, 64]
        if source.integers("gate_hidden_units"):
            source.note("gate_hidden_units", "a gate is one linear layer")
    else:
        model["bottom"] = source.integers("bottom_hidden_units") or [128, 64]
    model["tower"] = source.integers("tower_hidden_units") or [32]
    source.ignore("num_tasks")
    return model


MODELS: typing.Dict[str, typing.Callable[[Importer], Settings]] = {
    "LR": make_linear("lr"),
    "FM": make_linear("fm"),
    "DNN": lambda importer: importer.deep("dnn", "hidden_units"),
    "WideDeep": lambda importer: importer.deep("wide_deep", "hidden_units"),
    "DeepFM": lambda importer: importer.deep("deepfm", "hidden_units"),
    "DCN": make_cross,
    "DCNv2": make_cross,
    "DLRM": make_dlrm,
    "DIN": make_din,
    "MMoE": make_tasks,
    "SharedBottom": make_tasks,
}
