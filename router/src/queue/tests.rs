//! Order, fairness and bounds of the queue, by cases and over random arrivals.

use std::collections::BTreeMap;

use shared::{PlaceRequest, Priority, Random, RequestId, TenantId, TenantTag, Timestamp};

use super::{Queue, QueueLimits, Room, Surplus, Waiting};
use crate::testing::request;

fn queue(waiting_max: usize, weights: &[(&str, u32)]) -> Queue {
    let limits = QueueLimits { waiting_max, passes_max: 3, tenants_max: 4 };
    let weights = weights.iter().map(|&(name, weight)| (TenantId(name.into()).tag(), weight));
    Queue::new(limits, weights.collect())
}

fn of(tenant: &str, id: u128) -> PlaceRequest {
    PlaceRequest { tenant: TenantId(tenant.into()), ..request(id, 872, &[]) }
}

fn urgent(tenant: &str, id: u128, priority: Priority) -> PlaceRequest {
    PlaceRequest { priority, ..of(tenant, id) }
}

fn until(tenant: &str, id: u128, deadline: u64) -> PlaceRequest {
    PlaceRequest { deadline: Some(Timestamp(deadline)), ..of(tenant, id) }
}

fn first(queue: &Queue) -> Option<RequestId> {
    queue.in_order().next().map(|waiting| waiting.request.id)
}

fn serve_all(queue: &mut Queue) -> Vec<u128> {
    let mut served = Vec::new();
    while let Some(id) = first(queue) {
        served.push(queue.serve(id).expect("it waits").request.id.0);
    }
    served
}

fn id_of(waiting: Option<Waiting>) -> Option<u128> {
    waiting.map(|it| it.request.id.0)
}

#[test]
fn within_class_and_tenant_the_earliest_deadline_is_first() {
    let mut queue = queue(9, &[]);
    for (id, deadline) in [(1, Some(50)), (2, None), (3, Some(20)), (4, Some(50)), (5, None)] {
        let deadline = deadline.map(Timestamp);
        queue.push(PlaceRequest { deadline, ..of("a", id) }, Timestamp(0));
    }
    assert_eq!(queue.next_deadline(), Some(Timestamp(20)));
    assert_eq!(serve_all(&mut queue), [3, 1, 4, 2, 5]);
    assert_eq!((queue.len(), queue.next_deadline()), (0, None));
}

#[test]
fn the_order_stays_whatever_is_taken_out() {
    let mut queue = queue(4, &[]);
    for (id, deadline) in [(1, 99), (2, 50), (3, 20), (4, 50)] {
        queue.push(until("a", id, deadline), Timestamp(0));
    }
    assert!(queue.is_full());
    assert_eq!(id_of(queue.pop_expired(Timestamp(19))), None);
    assert_eq!(id_of(queue.pop_expired(Timestamp(20))), Some(3));
    assert_eq!(id_of(queue.remove(RequestId(2))), Some(2));
    assert_eq!(id_of(queue.remove(RequestId(2))), None);
    assert_eq!(queue.next_deadline(), Some(Timestamp(50)));
    assert_eq!(id_of(queue.pop_any()), Some(1));
    assert_eq!(serve_all(&mut queue), [4]);
}

#[test]
fn a_class_that_was_passed_often_enough_has_its_turn() {
    let mut queue = queue(99, &[]);
    for id in 0..8 {
        queue.push(urgent("a", id, Priority::High), Timestamp(0));
    }
    for id in [10, 11] {
        queue.push(urgent("a", id, Priority::Normal), Timestamp(0));
    }
    for id in [20, 21] {
        queue.push(urgent("a", id, Priority::Low), Timestamp(0));
    }
    assert_eq!(queue.by_class(), [8, 2, 2]);
    // Three passes each; when both lower ones are due, the more urgent of them is first.
    assert_eq!(serve_all(&mut queue), [0, 1, 2, 10, 20, 3, 4, 5, 11, 21, 6, 7]);
}

#[test]
fn tenants_are_served_by_weight_and_not_by_numbers() {
    let mut queue = queue(99, &[("b", 2)]);
    for id in 0..20 {
        queue.push(of("a", id), Timestamp(0));
    }
    for id in 100..120 {
        queue.push(of("b", id), Timestamp(0));
    }
    let served = serve_all(&mut queue);
    let of_b = served[..12].iter().filter(|&&id| 100 <= id).count();
    assert_eq!(of_b, 8, "twice as many of weight 2: {served:?}");
    // A tenant that was away gets no credit for it, and one that comes back is not punished for what it had.
    queue.push(of("c", 200), Timestamp(0));
    queue.push(of("a", 300), Timestamp(0));
    queue.push(of("c", 201), Timestamp(0));
    let again = serve_all(&mut queue);
    assert_eq!((again.len(), again[0]), (3, 200), "c was not served at all, so it is least far");
}

#[test]
fn a_full_queue_takes_from_the_tenant_that_has_most_for_its_weight() {
    let mut queue = queue(6, &[("b", 3)]);
    for id in 0..6 {
        queue.push(until("a", id, 100 - u64::try_from(id).expect("small")), Timestamp(0));
    }
    assert_eq!(queue.room_for(&of("a", 9)), Room::None(Surplus::OfAll), "alone");
    let room = Room::InsteadOf(RequestId(0), Surplus::OfTenant(6));
    assert_eq!(queue.room_for(&of("b", 9)), room, "the latest deadline");
    assert_eq!(
        queue.room_for(&urgent("a", 9, Priority::High)),
        Room::InsteadOf(RequestId(0), Surplus::OfAll),
        "a more urgent request takes a place of its own tenant"
    );
    for (id, gone) in [(10, 0), (11, 1), (12, 2), (13, 3)] {
        assert_eq!(id_of(queue.remove(RequestId(gone))), Some(gone));
        queue.push(of("b", id), Timestamp(0));
    }
    // Two of weight 1 and four of weight 3: a's third would be above its share, b's fifth would not.
    assert_eq!(queue.room_for(&of("a", 9)), Room::None(Surplus::OfTenant(2)));
    assert_eq!(queue.room_for(&of("b", 9)), Room::InsteadOf(RequestId(4), Surplus::OfTenant(2)));
}

#[test]
fn tenants_that_do_not_wait_are_forgotten_beyond_the_bound() {
    let mut queue = queue(99, &[]);
    for id in 0..40 {
        queue.push(of(&format!("tenant {id}"), id), Timestamp(0));
    }
    assert_eq!(queue.tenants(), (40, 40), "those that wait are bounded by the queue");
    assert_eq!(serve_all(&mut queue).len(), 40);
    let (known, waiting) = queue.tenants();
    assert!(known <= 4 && waiting == 0, "{known} of 4");
}

#[test]
fn a_gate_is_noted_at_the_request() {
    let mut queue = queue(9, &[]);
    queue.push(of("a", 1), Timestamp(0));
    queue.push(of("b", 2), Timestamp(0));
    queue.gate(RequestId(2), 7);
    queue.gate(RequestId(3), 7);
    let gated: BTreeMap<u128, Option<u64>> =
        queue.in_order().map(|it| (it.request.id.0, it.gated)).collect();
    assert_eq!(gated, BTreeMap::from([(1, None), (2, Some(7))]));
}

/// While tenants always wait, what each was served, over its weight, never differs by more than the largest request of
/// each of both: the bound of the paper.
#[test]
fn service_is_fair_within_a_bound_over_random_arrivals() {
    const LARGEST: u32 = 8_000;
    let names = [("a", 1), ("b", 2), ("c", 5), ("d", 1)];
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let mut queue = queue(10_000, &names);
        let mut served: BTreeMap<TenantTag, u64> = BTreeMap::new();
        let mut id = 0;
        for _ in 0..2_000 {
            // Every tenant has something in the queue at all times, and some have much.
            for (name, _) in names {
                let tenant = TenantId(name.into());
                let waits = queue.in_order().any(|it| it.request.tenant == tenant);
                if !waits || random.one_in(6) {
                    let tokens = u32::try_from(random.below(8_000)).expect("small");
                    id += 1;
                    let request = PlaceRequest { prompt_tokens: tokens, ..of(name, id) };
                    queue.push(request, Timestamp(0));
                }
            }
            let next = first(&queue).expect("they wait");
            let waiting = queue.serve(next).expect("it waits");
            *served.entry(waiting.request.tenant.tag()).or_default() +=
                u64::from(waiting.request.prompt_tokens) + 128;
        }
        let share = |&(name, weight): &(&str, u64)| {
            served.get(&TenantId(name.into()).tag()).copied().unwrap_or(0) / weight
        };
        let shares: Vec<u64> =
            names.iter().map(|&(name, weight)| share(&(name, u64::from(weight)))).collect();
        let (least, most) =
            (shares.iter().min().expect("four"), shares.iter().max().expect("four"));
        assert!(most - least <= 2 * u64::from(LARGEST + 128), "seed {seed}: {shares:?}");
    }
}

/// However many urgent requests come, a request of the lowest class is served within a bounded number of placements.
#[test]
fn no_class_starves_over_random_arrivals() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mut queue = queue(64, &[]);
        let (mut waited, mut id) = (BTreeMap::new(), 0);
        for _ in 0..1_000 {
            while queue.len() < 32 {
                id += 1;
                let priority = *random.pick(&[
                    Priority::High,
                    Priority::High,
                    Priority::Normal,
                    Priority::Low,
                ]);
                queue.push(urgent("a", id, priority), Timestamp(0));
            }
            let next = first(&queue).expect("they wait");
            queue.serve(next);
            waited.remove(&next);
            for class in Priority::ALL {
                // The first of each class in its own order.
                let first = queue.in_order().find(|it| it.request.priority == class);
                if let Some(id) = first.map(|it| it.request.id) {
                    let turns = waited.entry(id).or_insert(0_u32);
                    *turns += 1;
                    // Three passes, its own turn, and those of the other lower class.
                    assert!(*turns <= 6, "seed {seed}: {id} was passed {turns} times");
                }
            }
        }
    }
}
