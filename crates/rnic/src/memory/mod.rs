//! The translation and protection table (requirement M2).
