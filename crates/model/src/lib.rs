//! The words of the product: ids, names, limits, sandbox states and their transitions; pure.
