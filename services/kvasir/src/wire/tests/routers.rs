//! Routers that tell each other what they have placed.

use std::sync::Arc;

use router::Reservation;
use shared::RequestId;

use super::rig::{Cluster, Server, listen, ready, services, worker};
use crate::wire::{HeardRouter, RouterHub, RouterNews, Services, watch_router};

fn reservation(id: u128) -> Reservation {
    let (decode, prefill) = (worker("decode-3"), Some((worker("prefill-2"), 640)));
    Reservation { id: RequestId(id), decode, decode_rows: 140, prefill, names: Arc::default() }
}

async fn asked(hub: &RouterHub) {
    while !hub.take_asked() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_router_hears_all_first_then_news_and_the_end() {
    let cluster = Cluster::new();
    let hub = RouterHub::new();
    let services = Services { routers: Some(Arc::clone(&hub)), ..services("router-1") };
    let server = Server::start(cluster.identity("router-1"), services).await;
    let link = cluster.link("router-9", "router-1", server.address);
    let (sink, mut heard) = listen();
    let watching = watch_router(&link, sink);
    asked(&hub).await;
    let told = [
        RouterNews::All(vec![reservation(1)]),
        RouterNews::Placed(reservation(2)),
        RouterNews::Finished(RequestId(1)),
    ];
    for news in &told {
        hub.tell(news.clone());
    }
    for news in told {
        assert_eq!(heard.recv().await, Some(HeardRouter::News(news)));
    }
    server.kill().await;
    assert_eq!(heard.recv().await, Some(HeardRouter::Interrupted));
    drop(watching);
    assert_eq!(heard.recv().await, None);
}

#[tokio::test]
async fn only_routers_hear_what_a_router_has_placed() {
    let cluster = Cluster::new();
    let hub = RouterHub::new();
    let services = Services { routers: Some(Arc::clone(&hub)), ..services("router-1") };
    let server = Server::start(cluster.identity("router-1"), services).await;
    let link = cluster.link("decode-3", "router-1", server.address);
    ready(&link).await;
    let (sink, mut heard) = listen();
    let _watching = watch_router(&link, sink);
    assert_eq!(heard.recv().await, Some(HeardRouter::Interrupted));
    assert!(!hub.take_asked());
}
