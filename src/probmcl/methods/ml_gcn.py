"""ML-GCN: graph convolutions over co-occurring classes compute a classifier for each class."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import leaky_relu

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder, Encoder, with_maps
from probmcl.errors import check_range
from probmcl.heads.graph import SLOPE, GraphConvolution, label_graph, label_nodes, normalize_adjacency
from probmcl.methods.base import LogitClassifier, Logits, MethodOrigin


@dataclass(frozen=True)
class Config:
    """Settings of `ml_gcn`; the defaults are the published values, except that label vectors are learned.

    Attributes:
        vectors: text file with word vectors in GloVe format, which are kept fixed; `none` learns the label vectors.
        vector_size: size of a label vector; must match the file.
        hidden: size of the label vectors between the two graph convolutions.
        threshold: class j is a neighbor of class i if at least this fraction of the images of i also contain j (t).
        neighbor_share: total weight of the neighbors of a class; the class itself gets the rest (p).
    """

    vectors: str | None = None
    vector_size: int = 300
    hidden: int = 1024
    threshold: float = 0.4
    neighbor_share: float = 0.2

    def __post_init__(self) -> None:
        check_range(at_least=1, vector_size=self.vector_size, hidden=self.hidden)
        check_range(above=0, at_most=1, threshold=self.threshold)
        check_range(at_least=0, below=1, neighbor_share=self.neighbor_share)


@final
class MLGCN(LogitClassifier):
    """Global max pooling, and class weights computed by graph convolutions on a co-occurrence graph.

    logits = x Wᵀ with W = G σ(G E W₁) W₂, where x is the maximum of the feature maps over positions, E are the label
    vectors, G is the normalized label graph and σ a leaky ReLU. The graph is a buffer and is not learned.

    Reference: Chen et al., Multi-Label Image Recognition with Graph Convolutional Networks, CVPR 2019.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    files = ("vectors",)
    origin = MethodOrigin("authors' code", "chen2019mlgcn")
    needs_maps = True
    encoder: Encoder
    graph: Float[Tensor, "C C"]
    vectors: Float[Tensor, "C S"]

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.encoder = with_maps(encoder, "ml_gcn")
        graph = label_graph(
            label_space.counts,
            label_space.cooccurrence,
            threshold=self.config.threshold,
            neighbor_share=self.config.neighbor_share,
        )
        self.register_buffer("graph", normalize_adjacency(graph))
        self.vectors = label_nodes(label_space.names, size=self.config.vector_size, file=self.config.vectors)
        self.first = GraphConvolution(self.config.vector_size, self.config.hidden)
        self.second = GraphConvolution(self.config.hidden, self.encoder.channels)

    def class_vectors(self) -> Float[Tensor, "C K"]:
        """Return W, the weight vectors of the classes."""
        hidden = leaky_relu(self.first(self.vectors, self.graph), SLOPE)
        vectors: Tensor = self.second(hidden, self.graph)
        return vectors

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Apply the class vectors to the max-pooled feature maps."""
        pooled = self.encoder.maps(images).amax((2, 3))  # (N, K)
        return pooled @ self.class_vectors().T
