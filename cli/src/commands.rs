//! The commands: one file for each command, and a folder for each group of commands.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod board;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod compare;
pub(crate) mod data;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod explain;
pub(crate) mod gpu;
pub(crate) mod importance;
pub(crate) mod init;
pub(crate) mod key;
pub(crate) mod manual;
pub(crate) mod model;
pub(crate) mod online;
pub(crate) mod predict;
pub(crate) mod ps;
pub(crate) mod publish;
pub(crate) mod quickstart;
pub(crate) mod serve;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod train;
pub(crate) mod tune;
