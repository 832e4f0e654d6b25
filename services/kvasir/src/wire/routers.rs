//! What routers tell each other: where they have placed requests.
//!
//! A [`RouterHub`] fans a router's news out to the others, [`watch_router`] follows another one's. Both are best effort: a
//! watcher that falls behind is cut off and begins anew with all that runs, and all that runs is told again every few
//! seconds, so nothing that was lost counts wrongly for longer.

mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use router::{RESERVED_NAMES_MAX, Reservation};
use shared::RequestId;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::convert::{names_from_wire, names_to_wire, request_id, required};
use super::{WireError, v1};

pub use watch::{HeardRouter, RouterWatch, watch_router};

/// News that a watcher may lag behind: seconds of placements, 64 MB of the longest prompts; who is slower begins anew.
const QUEUE_MAX: usize = 4_096;
/// Most watchers at a time: 8 routers, and some that are gone and not noticed yet.
const WATCHERS_MAX: usize = 16;
/// Most reservations that are told at once, some 4 MB: far more than one process serves.
pub const RESERVATIONS_MAX: usize = 65_536;

/// One thing that a router tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterNews {
    /// All that runs. At most [`RESERVATIONS_MAX`].
    All(Vec<Reservation>),
    /// It has placed a request.
    Placed(Reservation),
    /// A request is over.
    Finished(RequestId),
}

/// Tells every other router that listens.
pub struct RouterHub {
    watchers: Mutex<Vec<Watcher>>,
    /// Somebody listens who does not know what runs.
    asked: AtomicBool,
    cut_off: AtomicU64,
}

struct Watcher {
    news: mpsc::Sender<Arc<RouterNews>>,
    /// Whether it knows what runs; before that nothing else is told.
    based: bool,
}

impl fmt::Debug for RouterHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterHub").field("watchers", &self.watchers.lock().len()).finish()
    }
}

/// Why a watcher was not taken: the bound is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyRouters;

impl RouterHub {
    /// A hub without watchers.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            watchers: Mutex::new(Vec::new()),
            asked: AtomicBool::new(false),
            cut_off: AtomicU64::new(0),
        })
    }

    /// Whether all that runs is to be told now, because somebody does not know it. True once.
    #[must_use]
    pub fn take_asked(&self) -> bool {
        self.asked.swap(false, Ordering::AcqRel)
    }

    /// Tells every watcher. Never blocks: one whose queue is full is cut off and begins anew when it comes back. To be
    /// called from one thread at a time.
    pub fn tell(&self, news: RouterNews) {
        let mut watchers = self.watchers.lock();
        if watchers.is_empty() {
            return;
        }
        let news = Arc::new(news);
        watchers.retain_mut(|watcher| match watcher.tell(&news) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                self.cut_off.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("another router takes news too slowly and must begin anew");
                false
            }
        });
    }

    /// Routers that were cut off because they fell behind. Only grows.
    #[must_use]
    pub fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// The queue of a new watcher; it ends when the watcher is cut off.
    pub(super) fn watch(&self) -> Result<mpsc::Receiver<Arc<RouterNews>>, TooManyRouters> {
        let (sender, news) = mpsc::channel(QUEUE_MAX);
        {
            let mut watchers = self.watchers.lock();
            watchers.retain(|watcher| !watcher.news.is_closed());
            if WATCHERS_MAX <= watchers.len() {
                return Err(TooManyRouters);
            }
            watchers.push(Watcher { news: sender, based: false });
        }
        self.asked.store(true, Ordering::Release);
        Ok(news)
    }
}

impl Watcher {
    fn tell(&mut self, news: &Arc<RouterNews>) -> Result<(), TrySendError<Arc<RouterNews>>> {
        self.based |= matches!(news.as_ref(), RouterNews::All(_));
        if !self.based {
            return Ok(());
        }
        self.news.try_send(Arc::clone(news))
    }
}

impl From<&RouterNews> for v1::RouterNews {
    fn from(news: &RouterNews) -> Self {
        use v1::router_news::News;
        let news = match news {
            RouterNews::All(all) => {
                let reservations = all.iter().map(Into::into).collect();
                News::All(v1::Reservations { reservations })
            }
            RouterNews::Placed(reservation) => News::Placed(reservation.into()),
            RouterNews::Finished(id) => News::Finished(id.0.to_be_bytes().to_vec()),
        };
        Self { news: Some(news) }
    }
}

impl TryFrom<v1::RouterNews> for RouterNews {
    type Error = WireError;

    fn try_from(message: v1::RouterNews) -> Result<Self, WireError> {
        use v1::router_news::News;
        Ok(match required(message.news, "news")? {
            News::All(all) => {
                let found = all.reservations.len();
                if RESERVATIONS_MAX < found {
                    return Err(WireError::TooMany {
                        field: "all.reservations",
                        found,
                        max: RESERVATIONS_MAX,
                    });
                }
                let all = all.reservations.into_iter().map(TryInto::try_into);
                Self::All(all.collect::<Result<_, _>>()?)
            }
            News::Placed(reservation) => Self::Placed(reservation.try_into()?),
            News::Finished(id) => Self::Finished(request_id(&id, "finished")?),
        })
    }
}

impl From<&Reservation> for v1::Reservation {
    fn from(reservation: &Reservation) -> Self {
        let Reservation { id, decode, decode_rows, prefill, ref names } = *reservation;
        Self {
            id: id.0.to_be_bytes().to_vec(),
            decode: Some(decode.into()),
            decode_rows,
            prefill: prefill.map(|(worker, _)| worker.into()),
            prefill_rows: prefill.map_or(0, |(_, rows)| rows),
            names: names_to_wire(names),
        }
    }
}

impl TryFrom<v1::Reservation> for Reservation {
    type Error = WireError;

    fn try_from(message: v1::Reservation) -> Result<Self, WireError> {
        let rows = message.prefill_rows;
        let prefill = message.prefill.map(TryInto::try_into).transpose()?;
        Ok(Self {
            id: request_id(&message.id, "id")?,
            decode: required(message.decode, "decode")?.try_into()?,
            decode_rows: message.decode_rows,
            prefill: prefill.map(|worker| (worker, rows)),
            names: names_from_wire(&message.names, RESERVED_NAMES_MAX, "names")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use router::{RESERVED_NAMES_MAX, Reservation};
    use shared::{BlockName, DpRank, RequestId, WorkerId, WorkerRank};

    use super::{QUEUE_MAX, RouterHub, RouterNews, WATCHERS_MAX};
    use crate::wire::{WireError, v1};

    fn reservation(id: u128, prefill: bool) -> Reservation {
        let rank = |worker| WorkerRank { worker: WorkerId(worker), rank: DpRank(0) };
        Reservation {
            id: RequestId(id),
            decode: rank(3),
            decode_rows: 140,
            prefill: prefill.then(|| (rank(2), 7_000)),
            names: if prefill {
                [BlockName([7; 16]), BlockName([9; 16])].into()
            } else {
                [].into()
            },
        }
    }

    #[test]
    fn news_survive_the_wire_and_faulty_ones_are_named() {
        let all = RouterNews::All(vec![reservation(1, true), reservation(u128::MAX, false)]);
        let others = [RouterNews::Placed(reservation(2, true)), RouterNews::Finished(RequestId(7))];
        for news in others.into_iter().chain([all, RouterNews::All(Vec::new())]) {
            assert_eq!(RouterNews::try_from(v1::RouterNews::from(&news)), Ok(news));
        }
        let missing = RouterNews::try_from(v1::RouterNews { news: None });
        assert_eq!(missing, Err(WireError::Missing { field: "news" }));
        let whole = v1::Reservation::from(&reservation(1, true));
        let short = v1::Reservation { id: vec![1], ..whole.clone() };
        assert!(matches!(Reservation::try_from(short), Err(WireError::Length { field: "id", .. })));
        let cut = v1::Reservation { names: vec![1; 17], ..whole.clone() };
        assert!(matches!(
            Reservation::try_from(cut),
            Err(WireError::Length { field: "names", .. })
        ));
        let names = vec![1; 16 * (RESERVED_NAMES_MAX + 1)];
        let long = v1::Reservation { names, ..whole.clone() };
        assert!(matches!(Reservation::try_from(long), Err(WireError::TooMany { .. })));
        let nowhere = v1::Reservation { decode: None, ..whole };
        let missing = Err(WireError::Missing { field: "decode" });
        assert_eq!(Reservation::try_from(nowhere), missing);
    }

    #[test]
    fn a_new_watcher_hears_all_first_and_a_slow_one_is_cut_off() {
        let hub = RouterHub::new();
        hub.tell(RouterNews::Placed(reservation(1, true)));
        let mut first = hub.watch().unwrap();
        assert!(hub.take_asked() && !hub.take_asked());
        hub.tell(RouterNews::Placed(reservation(2, true)));
        assert!(first.try_recv().is_err(), "it does not know what runs");
        let all = RouterNews::All(vec![reservation(2, true)]);
        let placed = RouterNews::Placed(reservation(3, false));
        hub.tell(all.clone());
        hub.tell(placed.clone());
        assert_eq!(*first.try_recv().unwrap(), all);
        assert_eq!(*first.try_recv().unwrap(), placed);
        let mut quick = hub.watch().unwrap();
        for _ in 0..=QUEUE_MAX {
            hub.tell(all.clone());
            assert!(quick.try_recv().is_ok());
        }
        assert_eq!(hub.cut_off(), 1);
        let more: Vec<_> = (1..WATCHERS_MAX).map(|_| hub.watch().unwrap()).collect();
        assert!(hub.watch().is_err());
        drop(more);
        assert!(hub.watch().is_ok());
    }
}
