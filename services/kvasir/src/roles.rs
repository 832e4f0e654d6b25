//! One role as a process of its own: `kvasir {router,prefill,decode,kvstore} --config FILE`.
//!
//! Every role has the same life: find itself in the file, take its addresses, prove who it is, load what its role needs,
//! answer, and drain when it is told to stop. What differs is in [`worker`], [`store`] and [`front`].
//!
//! Invariants: nothing is accepted before the role can answer; the control and data planes know a peer by its certificate
//! only; a file that changes is read again, and a faulty one changes nothing; at the end every thread and task is joined.

mod base;
mod front;
mod peers;
mod routers;
mod store;
pub(crate) mod stores;
mod unmodelled;
mod worker;

use std::sync::Arc;

use shared::Clock;

use crate::cli::RoleArgs;
use crate::console::Console;
use crate::identity::MemberRole;
use crate::telemetry::LogTap;
use base::Base;

/// Runs a role until SIGTERM or Ctrl-C, then drains.
///
/// # Errors
/// When a setting, an address, a certificate or the model cannot be used.
pub(crate) async fn run(
    role: MemberRole,
    args: &RoleArgs,
    tap: &LogTap,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let base = Base::open(role, args, tap, clock).await?;
    let telemetry = Arc::clone(&base.telemetry);
    let outcome = match role {
        MemberRole::Router => front::run(base, console).await,
        MemberRole::Prefill | MemberRole::Decode => worker::run(base, console).await,
        MemberRole::Kvstore => store::run(base, console).await,
    };
    telemetry.shutdown().await;
    outcome
}

/// Runs a decode worker without a model, for `kvasir bench router`.
///
/// # Errors
/// As for [`run`].
pub(crate) async fn run_unmodelled(
    args: &RoleArgs,
    tap: &LogTap,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let base = Base::open(MemberRole::Decode, args, tap, clock).await?;
    let telemetry = Arc::clone(&base.telemetry);
    let outcome = unmodelled::run(base, console).await;
    telemetry.shutdown().await;
    outcome
}
