// JDBC: a batch, a row, blocks of ids for pooled allocation, threads.

import java.sql.*;
import java.util.*;
import java.util.concurrent.*;

public class Main {
    static final String INSERT = "INSERT INTO orders (item) VALUES (?)";
    static final Set<Long> seen = new HashSet<>();

    static Connection connect() throws SQLException {
        String url = "jdbc:postgresql://%s:%s/%s".formatted(
            System.getenv("PGHOST"), System.getenv("PGPORT"), System.getenv("PGDATABASE"));
        return DriverManager.getConnection(url, System.getenv("PGUSER"), System.getenv("PGPASSWORD"));
    }

    static void require(boolean holds, String otherwise) {
        if (!holds) throw new IllegalStateException(otherwise);
    }

    /** Ids in the order in which one session has taken them. */
    static void check(List<Long> ids) {
        require(!ids.isEmpty(), "no id was returned");
        long last = 0;
        for (long id : ids) {
            require(id > last, id + " after " + last);
            require(seen.add(id), id + " came twice");
            last = id;
        }
    }

    static List<Long> generated(Statement statement) throws SQLException {
        List<Long> ids = new ArrayList<>();
        try (ResultSet keys = statement.getGeneratedKeys()) {
            require(keys.getMetaData().getColumnType(1) == Types.BIGINT, "the key is no bigint");
            while (keys.next()) ids.add(keys.getLong("id"));
        }
        return ids;
    }

    /** Ids from blocks of 50, as a pooled generator takes them: one statement for 50 ids. */
    static class Pool {
        long next = 1, last = 0, blocks = 0;

        long next(Connection db) throws SQLException {
            if (next > last) {
                try (Statement statement = db.createStatement();
                        ResultSet block = statement.executeQuery("SELECT * FROM leaf_segment_next_range('orders', 50)")) {
                    block.next();
                    next = block.getLong("first_id");
                    last = block.getLong("last_id");
                    blocks++;
                }
            }
            return next++;
        }
    }

    static List<Long> session(int number) throws SQLException {
        List<Long> ids = new ArrayList<>();
        try (Connection db = connect(); PreparedStatement insert = db.prepareStatement(INSERT, new String[] {"id"})) {
            for (int i = 0; i < 100; i++) {
                insert.setString(1, "of " + number);
                insert.executeUpdate();
                ids.addAll(generated(insert));
            }
        }
        return ids;
    }

    public static void main(String[] args) throws Exception {
        try (Connection db = connect()) {
            db.setAutoCommit(false);
            try (PreparedStatement insert = db.prepareStatement(INSERT, new String[] {"id"})) {
                for (int i = 0; i < 500; i++) {
                    insert.setString(1, "cake " + i);
                    insert.addBatch();
                }
                insert.executeBatch();
                List<Long> ids = generated(insert);
                require(ids.size() == 500, ids.size() + " keys of 500");
                check(ids);
            }
            Pool pool = new Pool();
            List<Long> ids = new ArrayList<>();
            try (PreparedStatement insert = db.prepareStatement("INSERT INTO orders VALUES (?, ?)")) {
                for (int i = 0; i < 500; i++) {
                    ids.add(pool.next(db));
                    insert.setLong(1, ids.get(i));
                    insert.setString(2, "pooled " + i);
                    insert.addBatch();
                }
                insert.executeBatch();
            }
            check(ids);
            require(pool.blocks == 10, pool.blocks + " blocks for 500 ids");
            db.commit();
            // Without the name, all columns come back.
            try (PreparedStatement insert = db.prepareStatement(INSERT, Statement.RETURN_GENERATED_KEYS)) {
                insert.setString(1, "tea");
                insert.executeUpdate();
                require(insert.getGeneratedKeys().getMetaData().getColumnCount() == 2, "not all columns");
                check(generated(insert));
            }
            db.commit();
        }
        ExecutorService threads = Executors.newFixedThreadPool(8);
        List<Future<List<Long>>> sessions = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            int number = i;
            sessions.add(threads.submit(() -> session(number)));
        }
        for (Future<List<Long>> session : sessions) check(session.get());
        threads.shutdown();
        System.out.println("checked " + seen.size() + " ids");
    }
}
