//! Two sides over loopback, with doubles behind the borders.

mod calls;
mod failures;
mod fresh;
mod lanes;
mod members;
mod rig;
mod routers;

pub(crate) use rig::facts;
