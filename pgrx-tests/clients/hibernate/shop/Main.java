package shop;

import java.util.*;
import org.hibernate.*;
import org.hibernate.cfg.Configuration;

/** Hibernate: entities with keys from blocks, in JDBC batches, by two sessions. */
public class Main {
    public static void main(String[] args) {
        SessionFactory factory = new Configuration()
            .addAnnotatedClass(Order.class)
            .setProperty("hibernate.connection.url", "jdbc:postgresql://%s:%s/%s".formatted(
                System.getenv("PGHOST"), System.getenv("PGPORT"), System.getenv("PGDATABASE")))
            .setProperty("hibernate.connection.username", System.getenv("PGUSER"))
            .setProperty("hibernate.connection.password", System.getenv("PGPASSWORD"))
            .setProperty("hibernate.dialect", "org.hibernate.dialect.PostgreSQLDialect")
            .setProperty("hibernate.jdbc.batch_size", "50")
            .buildSessionFactory();
        Set<Long> seen = new HashSet<>();
        for (int number = 0; number < 2; number++) {
            Session session = factory.openSession();
            Transaction transaction = session.beginTransaction();
            long last = 0;
            for (int i = 0; i < 500; i++) {
                Order order = new Order("cake " + i);
                session.save(order);
                // Known before the INSERT.
                if (order.id <= last || !seen.add(order.id)) throw new IllegalStateException(order.id + " after " + last);
                last = order.id;
            }
            transaction.commit();
            session.close();
        }
        Session session = factory.openSession();
        long rows = (Long) session.createQuery("SELECT count(*) FROM Order").uniqueResult();
        if (rows != 1000 || !seen.contains(1000L)) throw new IllegalStateException(rows + " rows, and 1000 was no id");
        session.close();
        factory.close();
        System.out.println("checked " + seen.size() + " ids");
    }
}
