//! Diesel: a row, many rows, an upsert, threads.

use std::collections::HashSet;
use std::error::Error;
use std::thread;

use diesel::prelude::*;

diesel::table! {
    orders (id) {
        id -> BigInt,
        item -> Text,
    }
}
diesel::table! {
    events (id) {
        id -> BigInt,
        what -> Text,
    }
}

#[derive(Insertable)]
#[diesel(table_name = orders)]
struct NewOrder {
    item: String,
}

#[derive(Queryable, Selectable)]
struct Order {
    id: i64,
    item: String,
}

/// Ids in the order in which one session has taken them; all that were seen are in `seen`.
fn check(ids: &[i64], seen: &mut HashSet<i64>) {
    assert!(!ids.is_empty(), "no id was returned");
    assert!(
        ids.windows(2).all(|pair| pair[0] < pair[1]),
        "not increasing: {ids:?}"
    );
    assert!(
        ids.iter().all(|id| *id > 0 && seen.insert(*id)),
        "an id came twice: {ids:?}"
    );
}

fn session(number: usize) -> Result<Vec<i64>, Box<dyn Error + Send + Sync>> {
    let mut db = PgConnection::establish(&std::env::var("DATABASE_URL")?)?;
    let insert = |_| {
        let order = NewOrder {
            item: format!("of {number}"),
        };
        Ok(diesel::insert_into(orders::table)
            .values(&order)
            .returning(orders::id)
            .get_result(&mut db)?)
    };
    (0..100).map(insert).collect()
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut db = PgConnection::establish(&std::env::var("DATABASE_URL")?)?;
    let mut seen = HashSet::new();
    db.transaction::<_, Box<dyn Error + Send + Sync>, _>(|db| {
        let many: Vec<_> = (0..500)
            .map(|i| NewOrder {
                item: format!("cake {i}"),
            })
            .collect();
        let inserted: Vec<Order> = diesel::insert_into(orders::table)
            .values(&many)
            .returning(Order::as_returning())
            .get_results(db)?;
        assert!(
            inserted
                .iter()
                .zip(&many)
                .all(|(row, order)| row.item == order.item)
        );
        check(
            &inserted.iter().map(|order| order.id).collect::<Vec<_>>(),
            &mut seen,
        );
        let event: i64 = diesel::insert_into(events::table)
            .values(events::what.eq("started"))
            .returning(events::id)
            .get_result(db)?;
        assert!(event > 1 << 53);
        Ok(())
    })?;
    let sessions: Vec<_> = (0..8)
        .map(|number| thread::spawn(move || session(number)))
        .collect();
    for session in sessions {
        check(
            &session.join().map_err(|_| "a thread has panicked")??,
            &mut seen,
        );
    }
    println!("checked {} ids", seen.len());
    Ok(())
}
