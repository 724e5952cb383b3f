"""Jobs from the pipeline configurations of EasyRec."""

from __future__ import annotations

import os
import pathlib
import typing

from .._errors import JobError
from .._job import Job
from . import _textproto
from ._easyrec_models import MODELS, pairs_of
from ._tree import Imported, Note, Section, set_activation

Settings = typing.Dict[str, typing.Any]

# The length of a list whose configuration names none.
USUAL_LENGTH = 50

POOLINGS = {"sum": "sum", "mean": "mean", "sqrtn": "sqrtn", "max": "max"}


def easyrec(path: typing.Union[str, os.PathLike[str]]) -> Imported:
    """Returns the job of the pipeline configuration of EasyRec in the file ``path``.

    Raises ``JobError`` if the file cannot be read, or if there is no model like its own.
    """
    path = pathlib.Path(path)
    notes: typing.List[Note] = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: this configuration cannot be read: {error}") from None
    root = _textproto.read(text, path.name, notes)
    settings = Importer(root).settings(path.stem)
    root.note_rest()
    return Imported(Job(settings), notes)


class Importer:
    """The translation of one configuration."""

    def __init__(self, root: Section) -> None:
        self.root = root
        self.data = root.part("data_config") or root.child("data_config", root.line)
        model = root.part("model_config")
        if model is None:
            raise root.error("model_config", "this part is needed; is the file a pipeline configuration?")
        self.model: Section = model
        self.types = {
            str(field.get("input_name")): str(field.get("input_type", "STRING"))
            for field in self.data.parts("input_fields")
        }
        self.features: typing.Dict[str, Settings] = {}
        self.tables: typing.Dict[str, Settings] = {}
        self.separators: typing.Set[str] = set()
        self.used = self.used_features()
        self.is_noted: typing.Set[str] = set()

    def settings(self, name: str) -> Settings:
        """Returns the sections of the job."""
        kind = str(self.model.get("model_class"))
        translate = MODELS.get(kind)
        if translate is None:
            known = ", ".join(MODELS)
            raise self.model.error("model_class", f"no model here is like {kind}; those that are: {known}")
        configs = [*self.root.parts("feature_configs")]
        for part in self.root.parts("feature_config"):
            configs.extend(part.parts("features"))
        for config in configs:
            self.set_features(config)
        if not self.features:
            raise self.root.error("feature_config", "no feature is used; list them in feature_groups")
        labels: Settings = {str(label): {} for label in self.data.all("label_fields")}
        if not labels:
            raise self.data.error("label_fields", "a label is needed; name its column")
        model = translate(self)
        table: Settings = {"optimizer": self.optimizer()}
        l2 = self.model.number("embedding_regularization", 0)
        if l2:
            table["l2"] = l2
        settings: Settings = {
            "name": name,
            "data": self.files(),
            "features": self.features,
            "labels": labels,
            "tables": {"*": table, **self.tables},
            "model": model,
            "train": self.training(),
        }
        weight = self.data.get("sample_weight")
        if weight is not None:
            settings["columns"] = {"weight": str(weight)}
        return settings

    def used_features(self) -> typing.Set[str]:
        """Returns the names in the groups of features."""
        names: typing.Set[str] = set()
        for group in self.model.parts("feature_groups"):
            group.ignore("group_name", "wide_deep")
            names.update(map(str, group.all("feature_names")))
            for attention in group.parts("sequence_features"):
                names.update(name for pair in pairs_of(attention) for name in pair)
        for attention in self.model.parts("seq_att_groups"):
            names.update(name for pair in pairs_of(attention) for name in pair)
        return names

    def note_once(self, part: Section, key: str, text: str) -> None:
        """Adds a note about the first line alone that has this text."""
        if text not in self.is_noted:
            self.is_noted.add(text)
            part.note(key, text)

    def files(self) -> Settings:
        data: Settings = {}
        for key, split in (("train_input_path", "train"), ("eval_input_path", "valid")):
            path = self.root.get(key)
            if path is not None:
                data[split] = str(path).split(",")
        form = str(self.data.get("input_type", "CSVInput"))
        if form.startswith("CSVInput"):
            data["format"] = "csv"
            separator = str(self.data.get("separator", ","))
            if len(separator) == 1:
                data["delimiter"] = separator
            else:
                self.data.note("separator", "one character is supported; the delimiter is a comma")
            if not self.data.get("with_header", False):
                data["header"] = list(self.types)
        elif form.startswith("Parquet"):
            data["format"] = "parquet"
        else:
            self.data.note("input_type", f"{form} is not read; export the rows to Parquet or CSV files")
            data.pop("train", None), data.pop("valid", None)
        if len(self.separators) > 1:
            found = " and ".join(repr(one) for one in sorted(self.separators))
            self.root.note("feature_config", f"one separator of lists is supported, not {found}")
        for separator in sorted(self.separators)[:1]:
            if len(separator) == 1:
                data["list_separator"] = separator
            else:
                self.root.note("feature_config", f"the separator {separator!r} is not one character")
        if self.data.get("shuffle", True) is False:
            data["shuffle"] = False
        self.data.ignore(
            "prefetch_size", "num_parallel_calls", "shuffle_buffer_size", "shard", "auto_expand_input_fields"
        )
        self.root.ignore("model_dir", "export_config")
        for field in self.data.parts("input_fields"):
            field.ignore("input_dim", "input_shape")
            if field.get("default_val") not in (None, ""):
                self.note_once(
                    field, "default_val", "a missing id is an id of its own, and not this value"
                )
        return data

    def set_features(self, config: Section) -> None:
        """Adds the features of one configuration: its own, and those that share it."""
        inputs = [str(name) for name in config.all("input_names")]
        if not inputs:
            raise config.error("input_names", "a feature needs the name of its column")
        name = str(config.get("feature_name", inputs[0]))
        for other, columns in [(name, inputs)] + [(str(s), [str(s)]) for s in config.all("shared_names")]:
            if other in self.used:
                self.set_feature(config, other, columns)
            else:
                text = "no group of features has this one, so it is left out"
                config.note("feature_name" if other == name else "shared_names", f"{other}: {text}")
                config.ignore(*(entry.key for entry in config.entries))

    def set_feature(self, config: Section, name: str, columns: typing.List[str]) -> None:
        kind = str(config.get("feature_type", "IdFeature"))
        translate = {
            "IdFeature": self.id_feature,
            "RawFeature": self.raw_feature,
            "TagFeature": self.list_feature,
            "SequenceFeature": self.list_feature,
            "ComboFeature": self.cross_feature,
        }.get(kind)
        feature = translate(config, name, columns, kind) if translate is not None else None
        if feature is None:
            config.note("feature_type", f"{name}, a {kind}, has no counterpart and is left out")
            config.ignore(*(entry.key for entry in config.entries))
            return
        for key in "hash_bucket_size", "num_buckets", "vocab_list", "vocab_file":
            if config.all(key):
                self.note_once(config, key, "every id has a row of its own; a table has no number of buckets")
        config.ignore("max_partitions", "use_embedding_variable", "combiner", "precision")
        if columns[:1] != [name] and feature["kind"] != "cross":
            feature["column"] = columns[0]
        dim, table = config.number("embedding_dim", 0), str(config.get("embedding_name", "") or "")
        if feature["kind"] == "numeric":
            if dim:
                self.note_once(config, "embedding_dim", "a number enters the model as it is, without a vector")
        else:
            if table:
                feature["table"] = table
            if dim:
                self.tables.setdefault(table or name, {})["dim"] = int(dim)
        self.features[name] = feature

    def id_type(self, column: str) -> str:
        return "i64" if self.types.get(column, "STRING").startswith("INT") else "string"

    def id_feature(
        self, config: Section, name: str, columns: typing.List[str], kind: str
    ) -> typing.Optional[Settings]:
        return {"kind": "id", "type": self.id_type(columns[0])}

    def raw_feature(
        self, config: Section, name: str, columns: typing.List[str], kind: str
    ) -> typing.Optional[Settings]:
        boundaries = [float(value) for value in config.all("boundaries")]
        if config.number("raw_input_dim", 1) != 1:
            return None
        low, high = config.number("min_val"), config.number("max_val")
        if boundaries:
            return {"kind": "bucketized", "boundaries": sorted(set(boundaries))}
        feature: Settings = {"kind": "numeric", "missing": 0}
        if low is not None or high is not None:
            feature["transform"] = "standardise"
            self.note_once(
                config, "max_val", "numbers are standardised by the training data, and not mapped to 0 to 1"
            )
        return feature

    def list_feature(
        self, config: Section, name: str, columns: typing.List[str], kind: str
    ) -> typing.Optional[Settings]:
        self.separators.add(str(config.get("separator", "|")))
        if config.get("kv_separator") is not None or config.get("seq_multi_sep") is not None:
            key = "kv_separator" if config.all("kv_separator") else "seq_multi_sep"
            config.note(key, f"{name}: values with weights or inner lists are not read; it is left out")
            return None
        feature: Settings = {"kind": "ids", "type": self.id_type(columns[0])}
        pooling = POOLINGS.get(str(config.get("combiner", "mean")), "mean")
        feature["pooling"] = pooling
        if kind == "SequenceFeature":
            length = config.number("max_seq_len") or config.number("sequence_length") or USUAL_LENGTH
            feature.update(kind="sequence", max_len=int(length))
        return feature

    def cross_feature(
        self, config: Section, name: str, columns: typing.List[str], kind: str
    ) -> typing.Optional[Settings]:
        of = []
        for column in columns:
            found = [
                other
                for other, feature in self.features.items()
                if feature.get("column", other) == column and feature["kind"] in ("id", "bucketized")
            ]
            if not found:
                config.note("input_names", f"{name}: there is no feature with one id of the column {column}")
                return None
            of.append(found[0])
        return {"kind": "cross", "of": of} if len(set(of)) > 1 else None

    def optimizer(self) -> Settings:
        rate, _ = self.rate()
        name = {"adagrad_optimizer": "adagrad", "momentum_optimizer": "momentum"}.get(self.optimizer_name(), "adam")
        return {"kind": name, "lr": rate}

    def optimizer_name(self) -> str:
        part = self.optimizer_part()
        names = [entry.key for entry in part.entries if entry.key.endswith("_optimizer")] if part else []
        return names[-1] if names else "adam_optimizer"

    def optimizer_part(self) -> typing.Optional[Section]:
        train = self.root.part("train_config")
        parts = train.parts("optimizer_config") if train is not None else []
        return parts[0] if parts else None

    def rate(self) -> typing.Tuple[float, typing.Optional[Settings]]:
        """Returns the learning rate, and the schedule if it is not constant."""
        usual, part = 1e-3, self.optimizer_part()
        chosen = part.part(self.optimizer_name()) if part is not None else None
        if part is None or chosen is None:
            return usual, None
        name = self.optimizer_name()
        if name not in ("adam_optimizer", "adam_async_optimizer", "adagrad_optimizer", "momentum_optimizer"):
            self.note_once(part, name, "there is no such optimizer for rows and layers; adam is used")
        part.ignore("use_moving_average", "moving_average_decay")
        chosen.ignore("beta1", "beta2", "momentum_optimizer_value")
        rates = chosen.part("learning_rate")
        if rates is None:
            return usual, None
        constant = rates.part("constant_learning_rate")
        if constant is not None:
            return float(constant.number("learning_rate", 0.002)), None
        decayed = rates.part("exponential_decay_learning_rate")
        if decayed is None:
            self.note_once(rates, rates.entries[0].key if rates.entries else "", "this schedule is left out")
            return usual, None
        rate = float(decayed.number("initial_learning_rate", 0.002))
        decayed.ignore("staircase", "burnin_learning_rate", "burnin_steps")
        step = {
            "kind": "step",
            "every": int(decayed.number("decay_steps", 4_000_000)),
            "factor": float(decayed.number("decay_factor", 0.95)),
            "floor": float(decayed.number("min_learning_rate", 0.0)) / rate if rate > 0 else 0.0,
        }
        return rate, {"decay": step}

    def training(self) -> Settings:
        rate, schedule = self.rate()
        train: Settings = {
            "batch_size": int(self.data.number("batch_size", 32)),
            "optimizer": self.optimizer(),
        }
        if schedule is not None:
            train["schedule"] = schedule
        epochs = int(self.data.number("num_epochs", 0))
        part = self.root.part("train_config")
        steps = part.number("num_steps") if part is not None else None
        train["epochs"] = epochs if epochs > 0 and steps is None else 1
        if part is not None:
            if steps is not None:
                part.note("num_steps", "a run ends by epochs and not by steps; `train.epochs` is 1")
            part.ignore("log_step_count_steps", "sync_replicas", "save_checkpoints_steps", "save_summary_steps")
        return train

    def deep(self, kind: str, part: typing.Optional[Section], key: str = "dnn") -> Settings:
        """Returns a model whose hidden layers are those of a network in ``part``."""
        model: Settings = {"kind": kind}
        network = part.part(key) if part is not None else None
        if network is not None:
            units = network.integers("hidden_units")
            if units is not None:
                model["hidden"] = units
            rates = [float(rate) for rate in network.all("dropout_ratio")]
            if rates and max(rates) > 0:
                model["dropout"] = max(rates)
                if len(set(rates)) > 1:
                    network.note("dropout_ratio", "all layers have the largest share")
            if network.get("use_bn", True):
                model["batch_norm"] = True
            set_activation(network, "activation", model, "activation")
        if part is not None:
            l2 = part.number("l2_regularization", 0)
            if l2:
                model["l2"] = l2
        return model
