"""The curvature of a loss in the weights of a network: ends and shape of its spectrum, its trace, and a penalty on it.

from trueup import curvature

curvature.top_eigenvalues(model, loss, batches).value     # batches: a list of (inputs, labels)
curvature.trace(model, loss, batches, relative=0.01)      # a Trace: value, stderr, products, converged
loss = trueup.CrossEntropy() + curvature.HessianTrace(0.01)
"""

from trueup.curvature.estimates import Density, Eigenvalues, Estimate, LayerTraces, Trace
from trueup.curvature.products import Curvature, curvature
from trueup.curvature.regulariser import HessianTrace
from trueup.curvature.spectrum import density_of, eigenvalues_of, spectral_density, top_eigenvalues
from trueup.curvature.trace import layer_traces, layer_traces_of, trace, trace_of

__all__ = [
    # of a model, a loss and data
    "top_eigenvalues",
    "trace",
    "layer_traces",
    "spectral_density",
    # the matrix itself, and the same of any matrix
    "Curvature",
    "curvature",
    "eigenvalues_of",
    "trace_of",
    "layer_traces_of",
    "density_of",
    # what they give
    "Estimate",
    "Eigenvalues",
    "Trace",
    "LayerTraces",
    "Density",
    # training against it
    "HessianTrace",
]
