"""Models in Python: a function of features that is traced once into the graph of a job."""

from __future__ import annotations

import re
import typing

from ._errors import JobError
from ._graph import CURRENT, Node, Section, Trace, make

Outputs = typing.Union[Node, typing.Mapping[str, Node]]


class Inputs:
    """The features of the job, from which a model begins.

    Each method makes a node. Without names, it reads every feature that it can read, in the order
    of the job.
    """

    def embedding(self, *features: str, name: typing.Optional[str] = None) -> Node:
        """Returns the vectors of ids side by side, lists pooled: ``[B, sum of dims]``."""
        return make("embedding", (), name, features=list(features) or None)

    def wide(
        self, *features: str, bias: bool = False, name: typing.Optional[str] = None
    ) -> Node:
        """Returns the sum of the linear weights of ids and numbers: ``[B, 1]``."""
        return make("wide", (), name, features=list(features) or None, bias=bias)

    def numeric(self, *features: str, name: typing.Optional[str] = None) -> Node:
        """Returns the numeric features side by side: ``[B, number of floats]``."""
        return make("numeric", (), name, features=list(features) or None)

    def values(self, feature: str, *, name: typing.Optional[str] = None) -> Node:
        """Returns the vector of each id of a list, not pooled: ``[V, dim]``, V values in all."""
        return make("values", (), name, feature=feature)


class Model:
    """A model in Python, to be subclassed.

        class TwoParts(zl.Model):
            def forward(self, inputs):
                fields = inputs.embedding()
                deep = zl.nn.mlp(fields, [64, 32], activation="relu")
                return inputs.wide(bias=True) + zl.nn.fm(fields) + zl.nn.linear(deep, 1)

        job = zl.Job(model=TwoParts(), features=.., labels=..)

    ``forward`` runs once, when a job takes the model. Its operators and the functions of
    ``zillion.nn`` make nodes; they compute nothing. The nodes are the ``[model.nodes]`` of a job
    file with ``kind = "graph"``, so the trainer, the servers and every check treat them as such.
    """

    l2: float = 0.0
    """The factor of the loss term ``(l2 / 2) * |w|**2`` over the dense parameters."""

    def forward(self, inputs: Inputs) -> Outputs:
        """Returns the node of the scores, ``[B, 1]``, or a dictionary with a node for each label.

        A score is the log odds of a label of 0 and 1, and the number itself of a label of numbers.
        """
        raise NotImplementedError(
            f"the model {type(self).__name__} has no `forward`; define forward(self, inputs)"
        )

    def trace(self) -> Section:
        """Returns the section ``[model]`` of the job: its kind, outputs and nodes."""
        return trace_model(self)[0]


def trace_model(model: Model) -> typing.Tuple[Section, typing.Dict[str, str]]:
    """Runs ``forward`` once. Returns the section, and where in the code each node was made."""
    trace = Trace()
    token = CURRENT.set(trace)
    try:
        outputs = model.forward(Inputs())
    finally:
        CURRENT.reset(token)
    kind = type(model).__name__
    by_label = outputs if isinstance(outputs, typing.Mapping) else {"": outputs}
    if not by_label:
        raise JobError(f"`forward` of {kind} returned no label; return a node for each label")
    for label, node in by_label.items():
        if not isinstance(node, Node) or id(node) not in trace.ids:
            of_label = f" for the label `{label}`" if label else ""
            raise JobError(
                f"`forward` of {kind} returned {type(node).__name__}{of_label}; return a node that "
                "it made, or a dictionary of label and node"
            )
    named = trace.name_nodes()
    trace.check_use(by_label.values())
    section: Section = {"kind": "graph"}
    if isinstance(outputs, Node):
        section["logits"] = outputs.name
    else:
        section["outputs"] = {label: node.name for label, node in by_label.items()}
    if model.l2:
        section["l2"] = model.l2
    section["nodes"] = {name: write_node(node) for name, node in named.items()}
    return section, {name: node.origin for name, node in named.items()}


def write_node(node: Node) -> Section:
    """Returns the section of one node."""
    inputs = {"inputs": [source.name for source in node.inputs]} if node.inputs else {}
    return {"op": node.op, **inputs, **node.attributes}


def add_origin(text: str, origins: typing.Mapping[str, str]) -> str:
    """Returns a text about a node with the line of code that made the node."""
    found = re.search(r"model\.nodes\.([A-Za-z0-9_-]+)", text)
    if found is None or found[1] not in origins:
        return text
    return f"{text} (the node is made at {origins[found[1]]})"
