//! Two sides over loopback, with doubles behind the borders.

mod calls;
mod failures;
mod fresh;
mod members;
mod rig;

pub(crate) use rig::facts;
