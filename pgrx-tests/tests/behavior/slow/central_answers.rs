//! Would catch: a late answer of the central server that is used although the local row was
//! replaced, locked or raised concurrently; and one that is requested again.

use std::time::Duration;

use leaf_id_tests::{Fleet, Mode, Proxy, Server, Session, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// A member whose tag p is sourced through a proxy in segments of 50. All cached ids are used up, a
/// claim is in flight, and its answer is delayed.
struct HeldUp {
    fleet: Fleet,
    proxy: Proxy,
    session: Session,
    issued: Vec<i64>,
    /// The central server's `max_id` before the answer.
    max_id: i64,
}

impl HeldUp {
    fn new() -> Self {
        let fleet = Fleet::new(1, &[("leaf_id.claim_timeout", "60s")]);
        let proxy = Proxy::to(&fleet.central);
        let mut session = fleet.members[0].session();
        session.create_foreign_server("by_proxy", &[proxy.dir()]);
        fleet.central.session().create_steady_tag("p", 50);
        session
            .run("SELECT leaf_tag_create('p', step => 50, max_step => 50, server => 'by_proxy')");
        session.run("SET leaf_id.refill_timeout = '500ms'");
        let mut issued = vec![session.next("p")];
        session.wait_for_spare("p");
        proxy.set(Mode::Silent);
        let failure = loop {
            match session.try_next("p") {
                Ok(id) => issued.push(id),
                Err(failure) => break failure,
            }
        };
        failure
            .is("55P03")
            .details("Server \"by_proxy\" was asked and has not answered");
        let max_id = fleet.central.session().max_id("p");
        Self {
            fleet,
            proxy,
            session,
            issued,
            max_id,
        }
    }

    fn member(&self) -> &Server {
        &self.fleet.members[0]
    }

    fn central_max_id(&self) -> i64 {
        self.fleet.central.session().max_id("p")
    }
}

#[test]
fn an_answer_for_a_row_that_was_replaced_is_a_gap() {
    let mut held_up = HeldUp::new();
    let mut editor = held_up.member().session();
    editor.run("DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'p'");
    held_up.session.try_next("p").unwrap_err().is("42704");
    editor.run("SELECT leaf_tag_create('p', step => 50, max_step => 50, server => 'by_proxy')");
    held_up.proxy.set(Mode::Pass);
    held_up.session.run("SET leaf_id.refill_timeout = '30s'");
    let id = held_up.session.next("p");
    assert_eq!(id, held_up.max_id + 50, "one segment is a gap");
    let counts = ["ids_lost", "ids_issued"].map(|count| held_up.session.figure("p", count));
    assert_eq!(counts, [50, held_up.issued.len() as i64 + 1]);
    assert!(held_up.issued.iter().all(|issued| *issued < id));
}

#[test]
fn an_answer_waits_for_a_locked_row_and_is_not_asked_for_again() {
    let mut held_up = HeldUp::new();
    let mut holder = held_up.member().session();
    holder.run("BEGIN; SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 'p' FOR UPDATE");
    held_up.proxy.set(Mode::Pass);
    wait_until(LIMIT, "the claim there", || {
        held_up.central_max_id() > held_up.max_id
    });
    let pid = holder.pid();
    // More than one attempt.
    for _ in 0..2 {
        let failure = held_up.session.try_next("p").unwrap_err();
        failure.is("55P03").details(&format!("process {pid}"));
    }
    assert_eq!(held_up.central_max_id(), held_up.max_id + 50);
    holder.run("COMMIT");
    held_up.session.run("SET leaf_id.refill_timeout = '30s'");
    assert_eq!(held_up.session.next("p"), held_up.max_id);
}

/// Would catch: ids below a value to which a DBA has raised the row while the answer was in flight.
#[test]
fn a_row_that_was_raised_concurrently_gets_nothing_lower() {
    let mut held_up = HeldUp::new();
    let raised = held_up.max_id + 1_000;
    held_up.member().session().run(&format!(
        "UPDATE leaf_id.leaf_alloc SET max_id = {raised} WHERE biz_tag = 'p'"
    ));
    held_up.proxy.set(Mode::Pass);
    let failure = held_up.session.try_next("p").unwrap_err();
    failure.is("55000").says("is behind");
    held_up.fleet.central.session().run(&format!(
        "UPDATE leaf_id.leaf_alloc SET max_id = {raised} WHERE biz_tag = 'p'"
    ));
    let mut next = Err(failure);
    wait_until(LIMIT, "an id above", || {
        next = held_up.session.try_next("p");
        next.is_ok()
    });
    assert_eq!(next.unwrap(), raised);
}
