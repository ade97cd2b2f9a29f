//! sqlx: a migration with the tag in it, a row, many rows, a pool.

use std::collections::HashSet;
use std::error::Error;
use std::path::Path;

use sqlx::PgPool;
use sqlx::migrate::Migrator;

const INSERT: &str = "INSERT INTO orders (item) VALUES ($1) RETURNING id";

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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    Migrator::new(Path::new("migrations"))
        .await?
        .run(&pool)
        .await?;

    let mut orders = HashSet::new();
    let mut transaction = pool.begin().await?;
    let mut ids = Vec::new();
    for i in 0..100 {
        let id: i64 = sqlx::query_scalar(INSERT)
            .bind(format!("tea {i}"))
            .fetch_one(&mut *transaction)
            .await?;
        ids.push(id);
    }
    let items: Vec<String> = (0..500).map(|i| format!("cake {i}")).collect();
    let many: Vec<i64> =
        sqlx::query_scalar("INSERT INTO orders (item) SELECT unnest($1::text[]) RETURNING id")
            .bind(&items)
            .fetch_all(&mut *transaction)
            .await?;
    ids.extend(many);
    transaction.commit().await?;
    check(&ids, &mut orders);

    let sessions = (0..8).map(|session| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..100 {
                let insert = sqlx::query_scalar::<_, i64>(INSERT).bind(format!("of {session}"));
                ids.push(insert.fetch_one(&pool).await?);
            }
            Ok::<_, sqlx::Error>(ids)
        })
    });
    for session in sessions.collect::<Vec<_>>() {
        check(&session.await??, &mut orders);
    }

    let event: i64 =
        sqlx::query_scalar("INSERT INTO events (what) VALUES ('started') RETURNING id")
            .fetch_one(&pool)
            .await?;
    assert!(event > 1 << 53);
    println!("checked {} ids", orders.len());
    Ok(())
}
