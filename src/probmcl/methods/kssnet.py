"""KSSNet: graph convolutions on labels, with lateral connections into the encoder and a graph-based classifier."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor, nn

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, Stage, has_stage, hook_stage_inputs, stages, with_stages
from probmcl.errors import check_range
from probmcl.heads.graph import (
    EmbeddingClassifier,
    LabelEmbeddings,
    LateralConnection,
    label_nodes,
    normalize_adjacency,
    superimposed_graph,
)
from probmcl.methods.base import LogitClassifier, Logits, MethodOrigin
from probmcl.readers.class_knowledge import label_knowledge


@dataclass(frozen=True)
class Config:
    """Settings of `kssnet`. The defaults come from the published video code if it defines them.

    Attributes:
        knowledge: table of weighted edges between classes, one per row; `none` uses only the co-occurrence of labels.
        vectors: text file with word vectors in GloVe format, which are kept fixed; `none` learns the label vectors.
        vector_size: size of a label vector; must match the file.
        connections: number of lateral connections, one at the input of each of the encoder's last stages.
        cooccurrence_weight: weight of the co-occurrence graph; the knowledge graph gets the rest (λ).
        smallest_edge: edges of the combined graph below this weight are removed.
        neighbor_share: weight of the neighbors of a class; the class itself gets the rest.
        scale: `even` initializes the weights so that label embeddings keep their variance from layer to layer, and
            divides products with an embedding by the square root of its size; `published` does neither.
        dropout: dropout on the pooled features.
    """

    knowledge: str | None = None
    vectors: str | None = None
    vector_size: int = 300
    connections: int = 3
    cooccurrence_weight: float = 0.5
    smallest_edge: float = 0.03
    neighbor_share: float = 0.4
    scale: Literal["even", "published"] = "even"
    dropout: float = 0.5

    def __post_init__(self) -> None:
        check_range(at_least=1, vector_size=self.vector_size, connections=self.connections)
        check_range(at_least=0, at_most=1, cooccurrence_weight=self.cooccurrence_weight)
        check_range(at_least=0, at_most=1, smallest_edge=self.smallest_edge)
        check_range(at_least=0, below=1, neighbor_share=self.neighbor_share, dropout=self.dropout)


@final
class KSSNet(LogitClassifier):
    """Encoder with lateral connections from a label graph, and the sum of a graph-based and a linear classifier.

    logits = f E₄ᵀ + linear(f), where f are the pooled features and E₁ to E₄ are the `LabelEmbeddings` on the
    superimposed graph, which is a buffer and is not learned. E₁, E₂ and E₃ each modify the input of one of the
    encoder's last three stages through a `LateralConnection`. If the encoder is a tail, which has only the last stage,
    the other connections are not used.

    Reference: Wang et al., Multi-Label Classification with Label Graph Superimposing, AAAI 2020.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    files = ("knowledge", "vectors")
    origin = MethodOrigin("partly reconstructed", "wang2020kssnet")
    probe_note = "the probe sees the encoder without its lateral connections"
    needs_maps = True
    encoder: Encoder
    graph: Float[Tensor, "C C"]
    vectors: Float[Tensor, "C S"]

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        classes = len(label_space)
        trainable = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
        self.encoder = with_stages(encoder, "kssnet", self.config.connections)
        for parameter in trainable:  # `with_stages` froze the layers after the maps, which are used here
            parameter.requires_grad_(True)
        self.register_buffer("graph", normalize_adjacency(_graph(label_space, self.config)))
        self.vectors = label_nodes(label_space.names, size=self.config.vector_size, file=self.config.vectors)
        stage_sizes = [stage.channels for stage in self._entrances]
        self.embeddings = LabelEmbeddings(
            [self.config.vector_size, *stage_sizes, self.encoder.features], even=self.config.scale == "even"
        )
        self.connections = nn.ModuleList()
        for stage in self._entrances:
            connection = LateralConnection(stage.channels, classes, scale=self._scale(stage.channels))
            connection.requires_grad_(has_stage(self.encoder, stage))  # a connection without its stage is not used
            self.connections.append(connection)
        self.classifier = EmbeddingClassifier(
            self.encoder.features,
            classes,
            scale=self._scale(self.encoder.features),
            dropout=self.config.dropout,
        )

    @property
    def _entrances(self) -> tuple[Stage, ...]:
        """The stages whose input a lateral connection modifies, from the first to the last."""
        return stages(self.encoder)[-self.config.connections :]

    def _scale(self, size: int) -> float:
        """Return the factor of the products with embeddings of this size."""
        return size**-0.5 if self.config.scale == "even" else 1.0

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Return the sum of both classifiers, on features computed with the lateral connections.

        The label embeddings E₁, E₂, … each modify the input of one stage of the encoder, and the last ones are used in
        the classifier. If the encoder lacks a stage, its connection is not used.
        """
        *stage_embeddings, class_embeddings = self.embeddings(self.vectors, self.graph)
        hooks = {}
        for stage, connection, embeddings in zip(self._entrances, self.connections, stage_embeddings, strict=True):
            if has_stage(self.encoder, stage):
                hooks[stage] = functools.partial(connection, embeddings=embeddings)
        with hook_stage_inputs(self.encoder, hooks):
            features = self.encoder(images)
        logits: Tensor = self.classifier(features, class_embeddings)
        return logits


def _graph(label_space: LabelSpace, config: Config) -> Float[Tensor, "C C"]:
    """Return the superimposed graph of label co-occurrences and, if there is a file with it, of class knowledge."""
    knowledge = None
    if config.knowledge is not None:
        knowledge = label_knowledge(Path(config.knowledge), label_space.names)
    return superimposed_graph(
        label_space.counts,
        label_space.cooccurrence,
        knowledge,
        cooccurrence_weight=config.cooccurrence_weight,
        smallest_edge=config.smallest_edge,
        neighbor_share=config.neighbor_share,
    )
