package shop;

import java.util.*;
import org.hibernate.*;
import org.hibernate.cfg.Configuration;

/** Hibernate: keys from blocks, in JDBC batches, by two sessions; keys that are the column's default. */
public class Main {
    public static void main(String[] args) {
        Configuration configuration = new Configuration()
            .addAnnotatedClass(Order.class)
            .addAnnotatedClass(Event.class)
            .setProperty("hibernate.connection.url", "jdbc:postgresql://%s:%s/%s".formatted(
                System.getenv("PGHOST"), System.getenv("PGPORT"), System.getenv("PGDATABASE")))
            .setProperty("hibernate.connection.username", System.getenv("PGUSER"))
            .setProperty("hibernate.connection.password", System.getenv("PGPASSWORD"))
            .setProperty("hibernate.jdbc.batch_size", "50")
            .setProperty("hibernate.generate_statistics", "true");
        try (SessionFactory factory = configuration.buildSessionFactory()) {
            Set<Long> seen = new HashSet<>();
            for (int session = 0; session < 2; session++) factory.inTransaction(db -> orders(db, seen));
            long statements = factory.getStatistics().getPrepareStatementCount();
            // The keys are known, so rows are sent in batches.
            if (statements > 20) throw new IllegalStateException(statements + " statements for " + seen.size() + " rows");
            factory.inTransaction(db -> events(db, seen));
            factory.inSession(db -> {
                long rows = db.createSelectionQuery("SELECT count(*) FROM Order", Long.class).getSingleResult();
                if (rows != 1000 || !seen.contains(1000L)) throw new IllegalStateException(rows + " rows, and 1000 was no id");
            });
            System.out.println("checked " + seen.size() + " ids");
        }
    }

    /** Their keys are known before the INSERT. */
    private static void orders(Session db, Set<Long> seen) {
        long last = 0;
        for (int i = 0; i < 500; i++) {
            Order order = new Order("cake " + i);
            db.persist(order);
            if (order.id <= last || !seen.add(order.id)) throw new IllegalStateException(order.id + " after " + last);
            last = order.id;
        }
    }

    private static void events(Session db, Set<Long> seen) {
        for (int i = 0; i < 100; i++) {
            Event event = new Event("number " + i);
            db.persist(event);
            if (event.id < 1L << 53 || !seen.add(event.id)) throw new IllegalStateException("no snowflake id: " + event.id);
        }
    }
}
