"""The models of EasyRec that have a counterpart here."""

from __future__ import annotations

import typing

from ._tree import Section


if typing.TYPE_CHECKING:
    from ._easyrec import Importer

Settings = typing.Dict[str, typing.Any]


def pairs_of(attention: Section) -> typing.List[typing.Tuple[str, str]]:
    """Returns the pairs of an id and the history that is weighed for it."""
    attention.ignore("group_name", "tf_summary", "allow_key_search")
    pairs: typing.List[typing.Tuple[str, str]] = []
    for of in attention.parts("seq_att_map"):
        pairs.extend(zip(map(str, of.all("key")), map(str, of.all("hist_seq"))))
    return pairs


def make_deepfm(importer: Importer) -> Settings:
    return make_sum(importer, "deepfm", "deepfm")


def make_wide(importer: Importer) -> Settings:
    return make_sum(importer, "wide_and_deep", "wide_deep")


def make_sum(importer: Importer, section: str, kind: str) -> Settings:
    """Returns a model whose parts are added up: a network, and one that sees ids directly."""
    part = importer.model.part(section)
    model = importer.deep(kind, part)
    if part is not None:
        part.ignore("wide_output_dim")
        note_final(part, "the parts of the model are added up, without layers behind them")
    return model


def note_final(part: Section, text: str) -> None:
    """Notes what becomes of the layers behind the parts of a model, if there are such layers."""
    final = part.part("final_dnn")
    if final is not None:
        part.note("final_dnn", text)
        ignore_all(final)


def make_dcn(importer: Importer) -> Settings:
    part = importer.model.part("dcn")
    tower = part.part("deep_tower") if part is not None else None
    cross = part.part("cross_tower") if part is not None else None
    is_v2 = cross is not None and cross.number("version", 1) == 2
    model = importer.deep("dcnv2" if is_v2 else "dcn", tower)
    for of in (tower, cross):
        if of is not None:
            of.ignore("input")
    if cross is not None:
        model["cross_layers"] = int(cross.number("cross_num", 3))
        rank = cross.number("projection_dim")
        if is_v2 and rank:
            model["low_rank"] = int(rank)
    if part is not None:
        l2 = part.number("l2_regularization", 0)
        if l2:
            model["l2"] = l2
        note_final(part, "one linear layer is behind the crosses and the network")
    return model


def make_dlrm(importer: Importer) -> Settings:
    part = importer.model.part("dlrm")
    model = importer.deep("dlrm", part, "top_dnn")
    bottom = part.part("bot_dnn") if part is not None else None
    if bottom is not None:
        units = bottom.integers("hidden_units") or []
        bottom.ignore("use_bn", "activation", "dropout_ratio")
        if any(feature["kind"] == "numeric" for feature in importer.features.values()):
            dims = {int(table["dim"]) for table in importer.tables.values() if "dim" in table}
            dim = dims.pop() if len(dims) == 1 else 16
            model["bottom"] = units if units[-1:] == [dim] else [*units, dim]
    return model


def make_din(importer: Importer) -> Settings:
    part = importer.model.part("multi_tower")
    model: Settings = {"kind": "din"}
    pairs: typing.List[typing.Tuple[str, str]] = []
    for attention in importer.model.parts("seq_att_groups"):
        pairs.extend(pairs_of(attention))
    for group in importer.model.parts("feature_groups"):
        for attention in group.parts("sequence_features"):
            pairs.extend(pairs_of(attention))
    for query, history in pairs:
        for name in (query, history):
            if name not in importer.features:
                raise importer.model.error("seq_att_groups", f"there is no feature {name}")
        table = importer.features[query].get("table", query)
        importer.features[history]["table"] = table
        importer.tables.pop(history, None)
    if not pairs:
        raise importer.model.error("seq_att_groups", "attention needs a pair of an id and a history")
    model["attention"] = [{"query": query, "history": history} for query, history in pairs]
    if part is not None:
        last = part.part("final_dnn")
        if last is not None:
            model.update({k: v for k, v in importer.deep("din", part, "final_dnn").items() if k != "kind"})
        for tower in part.parts("din_towers"):
            tower.ignore("input")
            network = tower.part("dnn")
            units = network.integers("hidden_units") if network is not None else None
            if units:
                model["attention_hidden"] = units[:-1] if units[-1] == 1 and len(units) > 1 else units
            if network is not None:
                ignore_all(network)
        note_towers(part)
    return model


def make_tower(importer: Importer) -> Settings:
    part = importer.model.part("multi_tower")
    model = importer.deep("dnn", part, "final_dnn")
    if part is not None:
        note_towers(part)
    return model


def note_towers(part: Section) -> None:
    """Notes what becomes of the towers of groups, if there are such towers."""
    if part.parts("towers"):
        part.note("towers", "one network reads all features; there are no towers for groups")
        for tower in part.parts("towers"):
            ignore_all(tower)


def make_fm(importer: Importer) -> Settings:
    part = importer.model.part("fm")
    l2 = part.number("l2_regularization", 0) if part is not None else 0
    return {"kind": "fm", **({"l2": l2} if l2 else {})}


def make_mmoe(importer: Importer) -> Settings:
    part = importer.model.part("mmoe")
    model: Settings = {"kind": "mmoe"}
    if part is None:
        return model
    experts = part.number("num_expert")
    network = part.part("expert_dnn")
    if network is not None:
        model["expert"] = network.integers("hidden_units") or [128, 64]
        ignore_all(network)
    if experts:
        model["experts"] = int(experts)
    towers = part.parts("task_towers")
    if towers:
        first = towers[0].part("dnn")
        model["tower"] = (first.integers("hidden_units") if first is not None else None) or [32]
        part.note("task_towers", "every label has a tower of the first one's layers")
        for tower in towers:
            ignore_all(tower)
    l2 = part.number("l2_regularization", 0)
    if l2:
        model["l2"] = l2
    return model


def ignore_all(part: typing.Optional[Section]) -> None:
    """Takes all keys of a part as read, because a note says what happens to it."""
    if part is None:
        return
    part.ignore(*(entry.key for entry in part.entries))
    for entry in part.entries:
        values = entry.value if isinstance(entry.value, list) else [entry.value]
        for value in values:
            if isinstance(value, Section):
                ignore_all(value)


MODELS: typing.Dict[str, typing.Callable[["Importer"], Settings]] = {
    "DeepFM": make_deepfm,
    "WideAndDeep": make_wide,
    "DCN": make_dcn,
    "DLRM": make_dlrm,
    "MultiTower": make_tower,
    "MultiTowerDIN": make_din,
    "FM": make_fm,
    "MMoE": make_mmoe,
}
