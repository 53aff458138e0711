//! The arithmetic that every sizing policy needs.
