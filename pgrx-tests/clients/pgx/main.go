// pgx v4: a row, a batch, COPY, goroutines; the trap of database/sql.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"sync"

	"github.com/jackc/pgx/v4"
	_ "github.com/jackc/pgx/v4/stdlib"
)

const insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id"

var seen = map[int64]bool{}

// check looks at ids in the order in which one session has taken them.
func check(ids []int64) {
	var last int64
	for _, id := range ids {
		if id <= last || seen[id] {
			log.Fatalf("%d after %d, seen: %t", id, last, seen[id])
		}
		seen[id] = true
		last = id
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func session(ctx context.Context, number int) (ids []int64) {
	// Connection parameters come from the environment.
	db, err := pgx.Connect(ctx, "")
	must(err)
	defer db.Close(ctx)
	for i := 0; i < 100; i++ {
		var id int64
		must(db.QueryRow(ctx, insert, fmt.Sprintf("of %d", number)).Scan(&id))
		ids = append(ids, id)
	}
	return ids
}

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, "")
	must(err)

	batch := &pgx.Batch{}
	for i := 0; i < 500; i++ {
		batch.Queue(insert, fmt.Sprintf("cake %d", i))
	}
	results := db.SendBatch(ctx, batch)
	ids := make([]int64, 500)
	for i := range ids {
		must(results.QueryRow().Scan(&ids[i]))
	}
	must(results.Close())
	check(ids)

	rows := make([][]interface{}, 1000)
	for i := range rows {
		rows[i] = []interface{}{fmt.Sprintf("copied %d", i)}
	}
	copied, err := db.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"item"}, pgx.CopyFromRows(rows))
	must(err)
	var different int64
	must(db.QueryRow(ctx, "SELECT count(DISTINCT id) FROM orders WHERE item LIKE 'copied%'").Scan(&different))
	if copied != 1000 || different != 1000 {
		log.Fatalf("%d rows copied, %d ids", copied, different)
	}
	must(db.Close(ctx))

	var mutex sync.Mutex
	var group sync.WaitGroup
	for number := 0; number < 8; number++ {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			ids := session(ctx, number)
			mutex.Lock()
			defer mutex.Unlock()
			check(ids)
		}(number)
	}
	group.Wait()

	std, err := sql.Open("pgx", "")
	must(err)
	result, err := std.Exec("INSERT INTO orders (item) VALUES ('tea')")
	must(err)
	if id, err := result.LastInsertId(); err == nil {
		log.Fatalf("LastInsertId is %d", id)
	}
	must(std.Close())
	fmt.Printf("checked %d ids\n", len(seen))
}
